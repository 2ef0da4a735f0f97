; The end of a capsule: what is in it is given back by its own deleter, unless somebody has taken it, who renamed the capsule.
;
; A capsule may end while an error is on its way, as an argument of a call whose next one raised it. Python's code must not run then,
; and ctypes would take the error for that of whatever it calls; so the error is put aside meanwhile.

@name = private constant [9 x i8] c"dltensor\00"

declare i32 @PyCapsule_IsValid(ptr, ptr)
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)

define void @polyop_capsule_ends(ptr %capsule) {
start:
  %kind.at = alloca ptr
  %value.at = alloca ptr
  %trace.at = alloca ptr
  %valid = call i32 @PyCapsule_IsValid(ptr %capsule, ptr @name)
  %mine = icmp ne i32 %valid, 0
  br i1 %mine, label %give, label %done

give:
  call void @PyErr_Fetch(ptr %kind.at, ptr %value.at, ptr %trace.at)
  %managed = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr @name)
  %deleter.at = getelementptr i8, ptr %managed, i64 56   ; behind a DLTensor of 48 bytes and the context
  %deleter = load ptr, ptr %deleter.at
  call void %deleter(ptr %managed)
  %kind = load ptr, ptr %kind.at
  %value = load ptr, ptr %value.at
  %trace = load ptr, ptr %trace.at
  call void @PyErr_Restore(ptr %kind, ptr %value, ptr %trace)
  br label %done

done:
  ret void
}
