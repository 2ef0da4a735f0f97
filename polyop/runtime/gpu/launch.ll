; A call of a known look: its addresses are looked at and put into a row of values, with which launches are carried out, one after
; the other. What a host does between two of them takes as long as the driver does.
;
; %given = { ptr program, ptr table, ptr row, values }; a program is words of 64 bits: how many checks, pairs and
; copies it has, then
;   check     position, bits that must be 0      of an address, which must not be 0 itself
;   pair      position, first, last, position, first, last      of two addresses: the bytes [first, last) from there must not meet
;   copy      position, slot, distance           of a value to a slot of the row: plus a distance
; with positions among the values given. Returns -1, and launches nothing, where a check or a pair fails.
;
; %table = { i64 launches, ptr launch, ptr current, ptr enter, i64 context, i64 most arguments of a launch, launches x %record }
;
; `launch` is cuLaunchKernel or hipModuleLaunchKernel. `current` writes down the thread's context (CUDA) or the number of its
; device (HIP, 32 bits), `enter` changes it; where it is not that of the arrays it is changed for as long as this takes.
; Returns 0, or the code of the first call that failed, with the number of the launch (from 1) in the high 32 bits.

%table = type { i64, ptr, ptr, ptr, i64, i64 }
%record = type { ptr, i32, i32, i32, i32, ptr }   ; function, blocks, threads in a block, bytes of shared memory, arguments, their slots

define i64 @polyop_launch(ptr %t, ptr %row, ptr %stream) {
start:
  %before.at = alloca i64
  store i64 0, ptr %before.at
  %count = load i64, ptr %t
  %launch.at = getelementptr %table, ptr %t, i64 0, i32 1
  %launch = load ptr, ptr %launch.at
  %current.at = getelementptr %table, ptr %t, i64 0, i32 2
  %current = load ptr, ptr %current.at
  %enter.at = getelementptr %table, ptr %t, i64 0, i32 3
  %enter = load ptr, ptr %enter.at
  %context.at = getelementptr %table, ptr %t, i64 0, i32 4
  %context = load i64, ptr %context.at
  %most.at = getelementptr %table, ptr %t, i64 0, i32 5
  %most = load i64, ptr %most.at
  %room = add i64 %most, 1
  %arguments = alloca ptr, i64 %room ; and a null behind them, which the tests' driver looks for
  %records = getelementptr %table, ptr %t, i64 1
  %asked = call i32 %current(ptr %before.at)
  %knows = icmp eq i32 %asked, 0
  br i1 %knows, label %compare, label %refused

compare:
  %before = load i64, ptr %before.at
  %here = icmp eq i64 %before, %context
  br i1 %here, label %all, label %move

move:
  %moved = call i32 %enter(i64 %context)
  %there = icmp eq i32 %moved, 0
  br i1 %there, label %all, label %refused

refused:
  %why = phi i32 [ %asked, %start ], [ %moved, %move ]
  %why64 = zext i32 %why to i64
  ret i64 %why64

all:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %one, label %done

one:
  %i = phi i64 [ 0, %all ], [ %next, %started ]
  %r = getelementptr %record, ptr %records, i64 %i
  %function = load ptr, ptr %r
  %blocks.at = getelementptr %record, ptr %r, i64 0, i32 1
  %blocks = load i32, ptr %blocks.at
  %threads.at = getelementptr %record, ptr %r, i64 0, i32 2
  %threads = load i32, ptr %threads.at
  %shared.at = getelementptr %record, ptr %r, i64 0, i32 3
  %shared = load i32, ptr %shared.at
  %slots.at = getelementptr %record, ptr %r, i64 0, i32 5
  %slots = load ptr, ptr %slots.at
  %has.at = getelementptr %record, ptr %r, i64 0, i32 4
  %has.32 = load i32, ptr %has.at
  %has = zext i32 %has.32 to i64
  br label %argument

argument:
  %a = phi i64 [ 0, %one ], [ %a1, %point ]
  %a.more = icmp slt i64 %a, %has
  br i1 %a.more, label %point, label %start.it

point:
  %slot.at = getelementptr i64, ptr %slots, i64 %a
  %slot = load i64, ptr %slot.at
  %value.at = getelementptr i64, ptr %row, i64 %slot
  %argument.at = getelementptr ptr, ptr %arguments, i64 %a
  store ptr %value.at, ptr %argument.at
  %a1 = add i64 %a, 1
  br label %argument

start.it:
  %end.at = getelementptr ptr, ptr %arguments, i64 %has
  store ptr null, ptr %end.at
  %code = call i32 %launch(ptr %function, i32 %blocks, i32 1, i32 1, i32 %threads, i32 1, i32 1, i32 %shared, ptr %stream,
                           ptr %arguments, ptr null)
  %next = add i64 %i, 1
  %good = icmp eq i32 %code, 0
  br i1 %good, label %started, label %done

started:
  %more = icmp slt i64 %next, %count
  br i1 %more, label %one, label %done

done:
  %result = phi i32 [ 0, %all ], [ %code, %start.it ], [ 0, %started ]
  %place = phi i64 [ 0, %all ], [ %next, %start.it ], [ 0, %started ]
  br i1 %here, label %end, label %back

back:
  %returned = call i32 %enter(i64 %before)
  br label %end

end:
  %low = zext i32 %result to i64
  %high = shl i64 %place, 32
  %both = or i64 %low, %high
  ret i64 %both
}

%given = type { ptr, ptr, ptr }

define internal i64 @polyop_call(ptr %g, ptr %stream) {
start:
  %program = load ptr, ptr %g
  %t.at = getelementptr %given, ptr %g, i64 0, i32 1
  %t = load ptr, ptr %t.at
  %row.at = getelementptr %given, ptr %g, i64 0, i32 2
  %row = load ptr, ptr %row.at
  %values = getelementptr %given, ptr %g, i64 1
  %checks = load i64, ptr %program
  %pairs.at = getelementptr i64, ptr %program, i64 1
  %pairs = load i64, ptr %pairs.at
  %copies.at = getelementptr i64, ptr %program, i64 2
  %copies = load i64, ptr %copies.at
  %words = getelementptr i64, ptr %program, i64 3
  br label %check

check:
  %c = phi i64 [ 0, %start ], [ %c1, %check.next ]
  %pc = phi ptr [ %words, %start ], [ %pc1, %check.next ]
  %c.more = icmp slt i64 %c, %checks
  br i1 %c.more, label %check.one, label %pair

check.one:
  %c.address = call i64 @given(ptr %values, ptr %pc, i64 0)
  %mask.at = getelementptr i64, ptr %pc, i64 1
  %mask = load i64, ptr %mask.at
  %low = and i64 %c.address, %mask
  %even = icmp eq i64 %low, 0
  %there = icmp ne i64 %c.address, 0
  %good = and i1 %even, %there
  br i1 %good, label %check.next, label %long

check.next:
  %c1 = add i64 %c, 1
  %pc1 = getelementptr i64, ptr %pc, i64 2
  br label %check

pair:
  %p = phi i64 [ 0, %check ], [ %p1, %pair.next ]
  %pp = phi ptr [ %pc, %check ], [ %pp1, %pair.next ]
  %p.more = icmp slt i64 %p, %pairs
  br i1 %p.more, label %pair.one, label %copy

pair.one:
  %begin = call i64 @end(ptr %values, ptr %pp, i64 0, i64 1)
  %end = call i64 @end(ptr %values, ptr %pp, i64 0, i64 2)
  %other.begin = call i64 @end(ptr %values, ptr %pp, i64 3, i64 4)
  %other.end = call i64 @end(ptr %values, ptr %pp, i64 3, i64 5)
  %before = icmp ule i64 %end, %other.begin
  %behind = icmp ule i64 %other.end, %begin
  %apart = or i1 %before, %behind
  br i1 %apart, label %pair.next, label %long

pair.next:
  %p1 = add i64 %p, 1
  %pp1 = getelementptr i64, ptr %pp, i64 6
  br label %pair

copy:
  %k = phi i64 [ 0, %pair ], [ %k1, %copy.one ]
  %pk = phi ptr [ %pp, %pair ], [ %pk1, %copy.one ]
  %k.more = icmp slt i64 %k, %copies
  br i1 %k.more, label %copy.one, label %launch

copy.one:
  %value = call i64 @end(ptr %values, ptr %pk, i64 0, i64 2)
  %slot.at = getelementptr i64, ptr %pk, i64 1
  %slot = load i64, ptr %slot.at
  %to = getelementptr i64, ptr %row, i64 %slot
  store i64 %value, ptr %to
  %k1 = add i64 %k, 1
  %pk1 = getelementptr i64, ptr %pk, i64 3
  br label %copy

launch:
  %code = call i64 @polyop_launch(ptr %t, ptr %row, ptr %stream)
  ret i64 %code

long:
  ret i64 -1
}

; The value whose position is the word %at.
define internal i64 @given(ptr %values, ptr %words, i64 %at) alwaysinline {
  %position.at = getelementptr i64, ptr %words, i64 %at
  %position = load i64, ptr %position.at
  %value.at = getelementptr i64, ptr %values, i64 %position
  %value = load i64, ptr %value.at
  ret i64 %value
}

; The same plus the word %by.
define internal i64 @end(ptr %values, ptr %words, i64 %at, i64 %by) alwaysinline {
  %value = call i64 @given(ptr %values, ptr %words, i64 %at)
  %distance.at = getelementptr i64, ptr %words, i64 %by
  %distance = load i64, ptr %distance.at
  %sum = add i64 %value, %distance
  ret i64 %sum
}

; The same for Python, with the addresses of what is given and of a stream; other threads run Python meanwhile, since a launch
; waits where the queue is full.
define ptr @polyop_run(ptr %self, ptr %arguments, i64 %count) {
  %first = load ptr, ptr %arguments
  %second.at = getelementptr ptr, ptr %arguments, i64 1
  %second = load ptr, ptr %second.at
  %g = call ptr @PyLong_AsVoidPtr(ptr %first)
  %stream = call ptr @PyLong_AsVoidPtr(ptr %second)
  %state = call ptr @PyEval_SaveThread()
  %code = call i64 @polyop_call(ptr %g, ptr %stream)
  call void @PyEval_RestoreThread(ptr %state)
  %answer = call ptr @PyLong_FromLongLong(i64 %code)
  ret ptr %answer
}

; The same for the native front of calls (`../entry_run.ll`), which has looked at the addresses and put them into a row: its first word
; is a job, and the values of launches follow. Returns 0, or 1, with nothing launched, where the way through Python has to decide.
;
; %job = { ptr word of a status or 0, ptr stream, i32 type of device, i32 its number, ptr table, i64 words told of a tensor,
;          i64 copies, i64 tensors }
; `stream` tells the framework's current one (DLPack's current_work_stream); words of 64 bits follow, with slots of the values:
;   copy      slot, slot, distance               of a value to another slot: plus a distance
;   tensor    slot, distance, slot, ptr known    what engines are told of a tensor that begins so far from a value, and to which slots
; where known = { i64 how many, ptr addresses, ptr words told, those of each behind those of the one before }.
%job = type { ptr, ptr, i32, i32, ptr, i64, i64, i64 }

define i64 @polyop_follow(ptr %given.row) {
entry:
  %stream.at = alloca ptr
  %job = load ptr, ptr %given.row
  %row = getelementptr i64, ptr %given.row, i64 1
  %word = load ptr, ptr %job
  %watched = icmp ne ptr %word, null
  br i1 %watched, label %watch, label %ask
watch:
  %said = load volatile i32, ptr %word
  %silent = icmp eq i32 %said, 0
  br i1 %silent, label %ask, label %python
ask:
  %current.at = getelementptr %job, ptr %job, i64 0, i32 1
  %current = load ptr, ptr %current.at
  %type.at = getelementptr %job, ptr %job, i64 0, i32 2
  %type = load i32, ptr %type.at
  %number.at = getelementptr %job, ptr %job, i64 0, i32 3
  %number = load i32, ptr %number.at
  %failed = call i32 %current(i32 %type, i32 %number, ptr %stream.at)
  %told = icmp eq i32 %failed, 0
  br i1 %told, label %open, label %error
error:
  call void @PyErr_Clear()
  br label %python
open:
  %stream = load ptr, ptr %stream.at
  %t.at = getelementptr %job, ptr %job, i64 0, i32 4
  %t = load ptr, ptr %t.at
  %size.at = getelementptr %job, ptr %job, i64 0, i32 5
  %size = load i64, ptr %size.at
  %bytes = shl i64 %size, 3
  %copies.at = getelementptr %job, ptr %job, i64 0, i32 6
  %copies = load i64, ptr %copies.at
  %tensors.at = getelementptr %job, ptr %job, i64 0, i32 7
  %tensors = load i64, ptr %tensors.at
  %words = getelementptr %job, ptr %job, i64 1
  br label %copy

copy:
  %k = phi i64 [ 0, %open ], [ %k1, %copy.one ]
  %pk = phi ptr [ %words, %open ], [ %pk1, %copy.one ]
  %k.more = icmp slt i64 %k, %copies
  br i1 %k.more, label %copy.one, label %tensor
copy.one:
  %value = call i64 @end(ptr %row, ptr %pk, i64 0, i64 2)
  %slot.at = getelementptr i64, ptr %pk, i64 1
  %slot = load i64, ptr %slot.at
  %to = getelementptr i64, ptr %row, i64 %slot
  store i64 %value, ptr %to
  %k1 = add i64 %k, 1
  %pk1 = getelementptr i64, ptr %pk, i64 3
  br label %copy

tensor:
  %m = phi i64 [ 0, %copy ], [ %m1, %put ]
  %pm = phi ptr [ %pk, %copy ], [ %pm1, %put ]
  %m.more = icmp slt i64 %m, %tensors
  br i1 %m.more, label %tensor.one, label %launch
tensor.one:
  %address = call i64 @end(ptr %row, ptr %pm, i64 0, i64 1)
  %m.slot.at = getelementptr i64, ptr %pm, i64 2
  %m.slot = load i64, ptr %m.slot.at
  %known.at = getelementptr i64, ptr %pm, i64 3
  %known = load ptr, ptr %known.at
  %many = load i64, ptr %known
  %addresses.at = getelementptr ptr, ptr %known, i64 1
  %addresses = load ptr, ptr %addresses.at
  br label %search
search:
  %j = phi i64 [ 0, %tensor.one ], [ %j1, %other ]
  %j.more = icmp slt i64 %j, %many
  br i1 %j.more, label %compare, label %python
compare:
  %theirs.at = getelementptr i64, ptr %addresses, i64 %j
  %theirs = load i64, ptr %theirs.at
  %same = icmp eq i64 %theirs, %address
  br i1 %same, label %put, label %other
other:
  %j1 = add i64 %j, 1
  br label %search
put:
  %m.to = getelementptr i64, ptr %row, i64 %m.slot
  %all.at = getelementptr ptr, ptr %known, i64 2
  %all.told = load ptr, ptr %all.at
  %behind = mul i64 %j, %size
  %m.from = getelementptr i64, ptr %all.told, i64 %behind
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %m.to, ptr align 8 %m.from, i64 %bytes, i1 false)
  %m1 = add i64 %m, 1
  %pm1 = getelementptr i64, ptr %pm, i64 4
  br label %tensor

launch:
  %state = call ptr @PyEval_SaveThread()
  %code = call i64 @polyop_launch(ptr %t, ptr %row, ptr %stream)
  call void @PyEval_RestoreThread(ptr %state)
  %refused = icmp ne i64 %code, 0
  %answer = zext i1 %refused to i64
  ret i64 %answer

python:
  ret i64 1
}

declare void @PyErr_Clear()
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
