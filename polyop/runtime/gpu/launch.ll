; All launches of a call, one after the other: what a host does between two of them takes as long as the driver does.
;
; %table = { i64 launches, ptr launch, ptr current, ptr enter, i64 context, launches x %record }
;
; `launch` is cuLaunchKernel or hipModuleLaunchKernel. `current` writes down the thread's context (CUDA) or the number of its
; device (HIP, 32 bits), `enter` changes it; where it is not that of the arrays it is changed for as long as this takes.
; Returns 0, or the code of the first call that failed, with the number of the launch (from 1) in the high 32 bits.

%table = type { i64, ptr, ptr, ptr, i64 }
%record = type { ptr, i32, i32, i32, i32, ptr }   ; function, blocks, threads in a block, bytes of shared memory, -, arguments

define i64 @polyop_launch(ptr %t, ptr %stream) {
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
  %args.at = getelementptr %record, ptr %r, i64 0, i32 5
  %args = load ptr, ptr %args.at
  %code = call i32 %launch(ptr %function, i32 %blocks, i32 1, i32 1, i32 %threads, i32 1, i32 1, i32 %shared, ptr %stream,
                           ptr %args, ptr null)
  %next = add i64 %i, 1
  %good = icmp eq i32 %code, 0
  br i1 %good, label %started, label %done

started:
  %more = icmp slt i64 %next, %count
  br i1 %more, label %one, label %done

done:
  %result = phi i32 [ 0, %all ], [ %code, %one ], [ 0, %started ]
  %place = phi i64 [ 0, %all ], [ %next, %one ], [ 0, %started ]
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
