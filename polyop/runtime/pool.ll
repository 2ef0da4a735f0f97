; The thread pool of polyop: `parallel` runs the trips of one loop on several threads.
;
; A region is one call of `parallel`. Its trips are cut into one share for each thread and each share into a few chunks;
; a thread takes the chunks of its own share first, in order, then those that others have left. Later chunks are smaller: who
; has the shorter share finds something left to take. Little work has fewer chunks, as each may begin with a copy of its own, and
; where so many trips use one copy, a lot, chunks end where lots do: then it is made once, or again where a share ends. So a region ends when the work is done, not when every worker has
; woken up, and one that is preempted delays at most its own chunk.
;
; @ticket holds  generation << 32 | open << 31 | joined.  A worker takes part by adding 1 to an open ticket; closing it
; tells the caller how many have joined, and he leaves when as many have counted themselves in @done. Until then, and only
; then, may a worker read @region. Workers spin on the ticket, then sleep on its generation with a futex; at once, if anybody
; else wants their processor, such as another library's pool.
;
; A worker that finds itself on the caller's processor hops off it before it takes part: both would wait for each other there,
; the caller spinning, until the system moves one of them, which may take longer than the work. Its affinity stays what it was.

target triple = "x86_64-unknown-linux-gnu"

%line = type { i64, [7 x i64] }                                  ; a counter with a cache line of its own
%region = type { ptr, ptr, i64, i64, i64, i64, i64, i64, i64 }   ; body, args, lo, hi, step, threads, trips, chunks of a share, lot

@ticket = internal global i64 0, align 64
@done = internal global i32 0, align 64
@sleepers = internal global i32 0, align 64
@busy = internal global i32 0, align 64
@started = internal global i64 0, align 64                       ; workers, numbered from 1
@region = internal global %region zeroinitializer, align 64
@next = internal global [MOST x %line] zeroinitializer, align 64 ; the first chunk of each share that nobody has taken
@identity = internal global [MOST x i64] zeroinitializer, align 64
@home = internal global i32 -1, align 64                         ; the processor of the last caller
@polyop_least = global [2 x i64] [i64 LEAST, i64 WAKING], align 64 ; work that is shared out: with workers awake, and asleep
@missed = internal global i64 0, align 64                        ; when workers were last left asleep

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i64 @pthread_self()
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i64 @syscall(i64, ...)
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; The whole number nearest to %long %part / %parts, the lower one of two: with a few trips the last chunk is the smallest then, too.
define internal i64 @nearest(i64 %long, i64 %part, i64 %parts) alwaysinline {
  %twice = shl i64 %long, 1
  %scaled = mul i64 %twice, %part
  %less = sub i64 %parts, 1
  %up = add i64 %scaled, %less
  %whole = shl i64 %parts, 1
  %q = udiv i64 %up, %whole
  ret i64 %q
}

; The end of a lot that is nearest to trip %at of a share, the lower one of two, if the share has a whole lot; its own ends stay.
define internal i64 @settled(i64 %at, i64 %begin, i64 %end, i64 %lot) alwaysinline {
entry:
  %long = sub i64 %end, %begin
  %inside = icmp ugt i64 %at, %begin
  %before = icmp ult i64 %at, %end
  %several = icmp ugt i64 %lot, 1
  %fits = icmp ule i64 %lot, %long
  %x = and i1 %inside, %before
  %y = and i1 %several, %fits
  %both = and i1 %x, %y
  br i1 %both, label %round, label %out
round:
  %less = sub i64 %lot, 1
  %half = lshr i64 %less, 1
  %up = add i64 %at, %half
  %lots = udiv i64 %up, %lot
  %whole = mul i64 %lots, %lot
  %late = call i64 @llvm.umax.i64(i64 %whole, i64 %begin)
  %found = call i64 @llvm.umin.i64(i64 %late, i64 %end)
  br label %out
out:
  %r = phi i64 [ %at, %entry ], [ %found, %round ]
  ret i64 %r
}

define internal void @take(i64 %me) noinline {
entry:
  %body = load ptr, ptr @region
  %args = load ptr, ptr getelementptr (%region, ptr @region, i32 0, i32 1)
  %lo = load i64, ptr getelementptr (%region, ptr @region, i32 0, i32 2)
  %hi = load i64, ptr getelementptr (%region, ptr @region, i32 0, i32 3)
  %step = load i64, ptr getelementptr (%region, ptr @region, i32 0, i32 4)
  %threads = load i64, ptr getelementptr (%region, ptr @region, i32 0, i32 5)
  %trips = load i64, ptr getelementptr (%region, ptr @region, i32 0, i32 6)
  %per = load i64, ptr getelementptr (%region, ptr @region, i32 0, i32 7)
  %lot = load i64, ptr getelementptr (%region, ptr @region, i32 0, i32 8)
  br label %share
share:
  %d = phi i64 [ 0, %entry ], [ %d1, %after ]
  %turn = add i64 %me, %d
  %wraps = icmp uge i64 %turn, %threads
  %less = sub i64 %turn, %threads
  %v = select i1 %wraps, i64 %less, i64 %turn
  %counter = getelementptr [MOST x %line], ptr @next, i64 0, i64 %v
  br label %look
look:
  %seen = load atomic i64, ptr %counter monotonic, align 64
  %some = icmp ult i64 %seen, %per
  br i1 %some, label %grab, label %after
grab:
  %c = atomicrmw add ptr %counter, i64 1 monotonic
  %mine = icmp ult i64 %c, %per
  br i1 %mine, label %run, label %after
run:                                                             ; share v is { trip : trips v / threads <= trip < trips (v + 1) / threads }
  %v1 = add i64 %v, 1
  %tv = mul i64 %trips, %v
  %tv1 = mul i64 %trips, %v1
  %begin = udiv i64 %tv, %threads
  %end = udiv i64 %tv1, %threads
  %long = sub i64 %end, %begin
  %parts = shl i64 %per, 1                                       ; of which the first chunk has three, the last one, others two
  %c2 = shl i64 %c, 1
  %c3 = add i64 %c2, 1
  %c5 = add i64 %c2, 3
  %first = icmp eq i64 %c, 0
  %p0 = select i1 %first, i64 0, i64 %c3
  %p1 = call i64 @llvm.umin.i64(i64 %c5, i64 %parts)
  %q0 = call i64 @nearest(i64 %long, i64 %p0, i64 %parts)
  %q1 = call i64 @nearest(i64 %long, i64 %p1, i64 %parts)
  %a0 = add i64 %begin, %q0
  %b0 = add i64 %begin, %q1
  %a = call i64 @settled(i64 %a0, i64 %begin, i64 %end, i64 %lot)
  %b = call i64 @settled(i64 %b0, i64 %begin, i64 %end, i64 %lot)
  %any = icmp ult i64 %a, %b
  br i1 %any, label %call, label %look
call:
  %as = mul i64 %a, %step
  %bs = mul i64 %b, %step
  %from = add i64 %lo, %as
  %past = add i64 %lo, %bs
  %to = call i64 @llvm.smin.i64(i64 %past, i64 %hi)
  call void %body(ptr %args, i64 %from, i64 %to, i64 %me)
  br label %look
after:
  %d1 = add i64 %d, 1
  %more = icmp ult i64 %d1, %threads
  br i1 %more, label %share, label %out
out:
  ret void
}

; Go to another processor than %cpu, if there is one for this thread.
define internal void @leave(i32 %cpu) noinline {
entry:
  %mine = alloca [16 x i64], align 8
  %others = alloca [16 x i64], align 8
  %known = icmp ult i32 %cpu, 1024
  br i1 %known, label %ask, label %out
ask:
  call void @llvm.memset.p0.i64(ptr %mine, i8 0, i64 128, i1 false)
  %r0 = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mine)
  %asked = icmp eq i32 %r0, 0
  br i1 %asked, label %copy, label %out
copy:
  %word = lshr i32 %cpu, 6
  %w = zext i32 %word to i64
  %bit = and i32 %cpu, 63
  %b = zext i32 %bit to i64
  %one = shl i64 1, %b
  %rest = xor i64 %one, -1
  br label %next
next:
  %i = phi i64 [ 0, %copy ], [ %i1, %next ]
  %any = phi i64 [ 0, %copy ], [ %any1, %next ]
  %from = getelementptr [16 x i64], ptr %mine, i64 0, i64 %i
  %x = load i64, ptr %from
  %is = icmp eq i64 %i, %w
  %keep = select i1 %is, i64 %rest, i64 -1
  %y = and i64 %x, %keep
  %to = getelementptr [16 x i64], ptr %others, i64 0, i64 %i
  store i64 %y, ptr %to
  %any1 = or i64 %any, %y
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 16
  br i1 %more, label %next, label %decide
decide:
  %some = icmp ne i64 %any1, 0
  br i1 %some, label %go, label %out
go:
  %r1 = call i32 @sched_setaffinity(i32 0, i64 128, ptr %others)
  %r2 = call i32 @sched_setaffinity(i32 0, i64 128, ptr %mine)
  br label %out
out:
  ret void
}

define internal ptr @worker(ptr %number) noinline {
entry:
  %me = ptrtoint ptr %number to i64
  %t0 = load atomic i64, ptr @ticket acquire, align 64
  %g0 = lshr i64 %t0, 32
  %o0 = lshr i64 %t0, 31
  %o1 = and i64 %o0, 1
  %first = sub i64 %g0, %o1                                      ; an open ticket is still to be served
  br label %watch
watch:
  %served = phi i64 [ %first, %entry ], [ %served, %pause ], [ %served, %offer ], [ %served, %woken ], [ %served, %missed ], [ %gen, %count ]
  %k = phi i64 [ 0, %entry ], [ %k1, %pause ], [ %k2, %offer ], [ 0, %woken ], [ %k, %missed ], [ 0, %count ]
  %t = load atomic i64, ptr @ticket acquire, align 64
  %gen = lshr i64 %t, 32
  %bit = lshr i64 %t, 31
  %open = trunc i64 %bit to i1
  %new = icmp ne i64 %gen, %served
  %go = and i1 %open, %new
  br i1 %go, label %meet, label %wait
meet:
  %here = call i32 @sched_getcpu()
  %home = load atomic i32, ptr @home monotonic, align 64
  %close = icmp eq i32 %here, %home
  br i1 %close, label %hop, label %join
hop:
  call void @leave(i32 %here)
  br label %join
wait:
  %patient = icmp ult i64 %k, SPINS
  br i1 %patient, label %pause, label %sleep
pause:
  call void @llvm.x86.sse2.pause()
  %k1 = add i64 %k, 1
  %low = and i64 %k1, OFFERED
  %turn = icmp eq i64 %low, 0
  br i1 %turn, label %offer, label %watch
offer:                                                           ; if anybody took the processor, do not wait for it awake
  %before = call i64 @llvm.readcyclecounter()
  %y = call i32 @sched_yield()
  %after = call i64 @llvm.readcyclecounter()
  %gone = sub i64 %after, %before
  %taken = icmp ugt i64 %gone, TAKEN
  %k2 = select i1 %taken, i64 SPINS, i64 %k1
  br label %watch
sleep:                                                           ; the kernel sleeps us only if the generation is still the one just read
  %g32 = trunc i64 %gen to i32
  %s0 = atomicrmw add ptr @sleepers, i32 1 seq_cst
  %r = call i64 (i64, ...) @syscall(i64 202, ptr getelementptr (i8, ptr @ticket, i64 4), i32 128, i32 %g32, ptr null, ptr null, i32 0)
  br label %woken
woken:
  %s1 = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  br label %watch
join:
  %t1 = add i64 %t, 1
  %swap = cmpxchg ptr @ticket, i64 %t, i64 %t1 seq_cst monotonic, align 64
  %joined = extractvalue { i64, i1 } %swap, 1
  br i1 %joined, label %in, label %missed
missed:
  br label %watch
in:
  %threads = load i64, ptr getelementptr (%region, ptr @region, i32 0, i32 5)
  %wanted = icmp ult i64 %me, %threads
  br i1 %wanted, label %work, label %count
work:
  call void @take(i64 %me)
  br label %count
count:
  %n = atomicrmw add ptr @done, i32 1 release
  br label %watch
}

; The number of the thread that runs this: that of a worker, or 0 for every other.
define internal i64 @myself() noinline {
entry:
  %id = call i64 @pthread_self()
  %n = load atomic i64, ptr @started acquire, align 64
  br label %test
test:
  %w = phi i64 [ 0, %entry ], [ %w1, %look ]
  %w1 = add i64 %w, 1
  %some = icmp ule i64 %w1, %n
  br i1 %some, label %look, label %none
look:
  %at = getelementptr [MOST x i64], ptr @identity, i64 0, i64 %w1
  %other = load atomic i64, ptr %at monotonic, align 8
  %same = icmp eq i64 %other, %id
  br i1 %same, label %found, label %test
found:
  ret i64 %w1
none:
  ret i64 0
}

; Start workers until there are %need, with all signals blocked: signals are the business of Python's own threads.
define internal void @start(i64 %need) noinline {
entry:
  %all = alloca [128 x i8], align 8
  %old = alloca [128 x i8], align 8
  %thread = alloca i64, align 8
  call void @llvm.memset.p0.i64(ptr %all, i8 -1, i64 128, i1 false)
  %m0 = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %old)
  br label %test
test:
  %n = load atomic i64, ptr @started monotonic, align 64
  %more = icmp ult i64 %n, %need
  br i1 %more, label %create, label %out
create:
  %n1 = add i64 %n, 1
  %number = inttoptr i64 %n1 to ptr
  %rc = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %number)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %created, label %out                          ; with fewer workers a region still ends
created:
  %id = load i64, ptr %thread
  %at = getelementptr [MOST x i64], ptr @identity, i64 0, i64 %n1
  store atomic i64 %id, ptr %at monotonic, align 8
  store atomic i64 %n1, ptr @started release, align 64
  br label %test
out:
  %m1 = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  ret void
}

define void @polyop_parallel(ptr %body, ptr %args, i64 %lo, i64 %hi, i64 %step, i64 %wanted, i64 %amount, i64 %lot) {
entry:
  %span = sub i64 %hi, %lo
  %some = icmp sgt i64 %span, 0
  br i1 %some, label %weigh, label %out
weigh:
  %least = load i64, ptr @polyop_least
  %little = icmp slt i64 %amount, %least
  br i1 %little, label %serial, label %size
size:
  %short = sub i64 %step, 1
  %reach = add i64 %span, %short
  %trips = udiv i64 %reach, %step
  %w0 = call i64 @llvm.umin.i64(i64 %wanted, i64 MOST)
  %threads = call i64 @llvm.umin.i64(i64 %w0, i64 %trips)
  %alone = icmp ule i64 %threads, 1
  br i1 %alone, label %serial, label %rouse
rouse:
  %others = sub i64 %threads, 1
  %have = load atomic i64, ptr @started monotonic, align 64
  %lying = load atomic i32, ptr @sleepers monotonic, align 64
  %lie = sext i32 %lying to i64
  %awake = sub i64 %have, %lie
  %ready = icmp sge i64 %awake, %others
  %waking = load i64, ptr getelementptr ([2 x i64], ptr @polyop_least, i64 0, i64 1)
  %much = icmp sge i64 %amount, %waking
  %serves = or i1 %ready, %much
  br i1 %serves, label %try, label %recent
recent:
  %now = call i64 @llvm.readcyclecounter()
  %then = load atomic i64, ptr @missed monotonic, align 64
  store atomic i64 %now, ptr @missed monotonic, align 64
  %since = sub i64 %now, %then
  %again = icmp ult i64 %since, MOMENT
  br i1 %again, label %try, label %serial
try:                                                             ; a nested or concurrent call runs on its own thread
  %swap = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic, align 64
  %free = extractvalue { i32, i1 } %swap, 1
  br i1 %free, label %shared, label %serial
serial:
  %number = call i64 @myself()
  call void %body(ptr %args, i64 %lo, i64 %hi, i64 %number)
  br label %out
shared:
  %enough = icmp uge i64 %have, %others
  br i1 %enough, label %fill, label %hire
hire:
  call void @start(i64 %others)
  br label %fill
fill:
  store ptr %body, ptr @region
  store ptr %args, ptr getelementptr (%region, ptr @region, i32 0, i32 1)
  store i64 %lo, ptr getelementptr (%region, ptr @region, i32 0, i32 2)
  store i64 %hi, ptr getelementptr (%region, ptr @region, i32 0, i32 3)
  store i64 %step, ptr getelementptr (%region, ptr @region, i32 0, i32 4)
  store i64 %threads, ptr getelementptr (%region, ptr @region, i32 0, i32 5)
  store i64 %trips, ptr getelementptr (%region, ptr @region, i32 0, i32 6)
  store i64 %lot, ptr getelementptr (%region, ptr @region, i32 0, i32 8)
  %fair = udiv i64 %trips, %threads
  %each = udiv i64 %amount, %threads
  %worth = udiv i64 %each, CHUNK
  %two = call i64 @llvm.umax.i64(i64 %worth, i64 2)
  %many = call i64 @llvm.umin.i64(i64 %two, i64 CHUNKS)
  %per = call i64 @llvm.umin.i64(i64 %fair, i64 %many)
  store i64 %per, ptr getelementptr (%region, ptr @region, i32 0, i32 7)
  br label %clear
clear:
  %i = phi i64 [ 0, %fill ], [ %i1, %clear ]
  %counter = getelementptr [MOST x %line], ptr @next, i64 0, i64 %i
  store atomic i64 0, ptr %counter monotonic, align 64
  %i1 = add i64 %i, 1
  %uncleared = icmp ult i64 %i1, %threads
  br i1 %uncleared, label %clear, label %begin
begin:
  store atomic i32 0, ptr @done monotonic, align 64
  %cpu = call i32 @sched_getcpu()
  store atomic i32 %cpu, ptr @home monotonic, align 64
  %before = load atomic i64, ptr @ticket monotonic, align 64
  %g = lshr i64 %before, 32
  %g1 = add i64 %g, 1
  %closed = shl i64 %g1, 32
  %opened = or i64 %closed, 2147483648
  %t0 = atomicrmw xchg ptr @ticket, i64 %opened seq_cst, align 64
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 64
  %any = icmp ne i32 %asleep, 0
  br i1 %any, label %wake, label %work
wake:
  %r = call i64 (i64, ...) @syscall(i64 202, ptr getelementptr (i8, ptr @ticket, i64 4), i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  br label %work
work:
  call void @take(i64 0)
  %last = atomicrmw xchg ptr @ticket, i64 %closed seq_cst, align 64
  %joined = and i64 %last, 2147483647
  %j32 = trunc i64 %joined to i32
  br label %watch
watch:
  %k = phi i64 [ 0, %work ], [ %k1, %pause ], [ %k, %yield ]
  %d = load atomic i32, ptr @done acquire, align 64
  %finished = icmp eq i32 %d, %j32
  br i1 %finished, label %leave, label %wait
wait:
  %patient = icmp ult i64 %k, PATIENCE
  br i1 %patient, label %pause, label %yield
pause:
  call void @llvm.x86.sse2.pause()
  %k1 = add i64 %k, 1
  br label %watch
yield:
  %y = call i32 @sched_yield()
  br label %watch
leave:
  store atomic i32 0, ptr @busy release, align 64
  br label %out
out:
  ret void
}

; In the child of a fork no worker is left, and whoever was in a region is gone.
define void @polyop_forked() {
  store i64 0, ptr @ticket
  store i32 0, ptr @done
  store i32 0, ptr @sleepers
  store i64 0, ptr @started
  store i32 0, ptr @busy
  ret void
}
