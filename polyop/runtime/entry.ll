; The native front of a call: arguments that look like those of an earlier call go to its kernel without any Python code.
;
; A call's *look* is a row of words: the number of threads, then for each parameter nothing (0), or what is known of its
; value: type, dtype, device, shape and strides of an array, type of a number, and also its value where that chooses the Op. Equal
; looks have equal plans (call.py): a table of *records* (entry.py) finds the plan, which is a row of words as well.
; Where looks differ in nothing but sizes, their *outline* is the same: of each extent only how many bits it has, of each
; stride only whether it may be that of one element, or leads just past the elements of the next dimension, or how many are larger.
; A record of an outline has a function that writes the sizes of this call into the plan (entry_sizes.py), or refuses them.
; A *form* is an outline that only shows which extents are 0 or 1. Which kernel its calls get depends on their sizes, so Python
; chooses it, and with it the record that is carried out (formed.py).
; What a look does not show is tested here again. Whoever is in doubt calls @general, the way through Python, which knows
; every case and every error; nothing has happened until then but an allocation that is given back.
;
; All of this runs with the interpreter's lock held, kernels that take long aside. Pointers to objects are borrowed from
; the caller's arguments, from %record or from @polyop_entry, but for what is said to be new.

target triple = "x86_64-unknown-linux-gnu"

%array = type { i64, ptr, ptr, i32, ptr, ptr, ptr, ptr, i32 }    ; count, type, data, rank, shape, strides, base, dtype, flags
%object = type { i64, ptr }                                      ; count, type
%tensor = type { ptr, i32, i32, i32, i32, ptr, ptr, i64 }        ; data, device, its number, rank, dtype, shape, strides, offset
%places = type [PLACES x ptr]                                    ; values of a call: its parameters, then the arrays of `out`
%words = type [WORDS x i64]

%context = type {
  ptr,  ;  0 numpy.ndarray
  ptr,  ;  1 PyArray_NewFromDescr
  ptr,  ;  2 PyArray_SetBaseObject
  ptr,  ;  3 the dtype uint8
  ptr,  ;  4 the function of the general way
  ptr,  ;  5 the name of an operator's attribute that holds (table, info)
  ptr,  ;  6 the namespace of threads.py
  ptr,  ;  7 "setting"
  ptr,  ;  8 "out"
  ptr,  ;  9 None
  ptr,  ; 10 tuple
  ptr,  ; 11 int
  ptr,  ; 12 bool
  ptr,  ; 13 float
  ptr,  ; 14 torch.Tensor, or 0 as all that follow
  ptr,  ; 15 torch.nn.Parameter
  ptr,  ; 16 DLPack's dltensor_from_py_object_no_sync
  ptr,  ; 17 "requires_grad"
  ptr,  ; 18 True
  ptr,  ; 19 torch.is_grad_enabled
  ptr,  ; 20 torch.Tensor.is_neg
  ptr,  ; 21 torch.empty_like
  ptr   ; 22 torch.empty
}

@polyop_entry = global %context zeroinitializer

@_Py_NotImplementedStruct = external global %object

declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare void @PyErr_Clear()
declare ptr @PyErr_Occurred()
declare ptr @PyErr_NoMemory()
declare ptr @PyMem_Malloc(i64)
declare void @PyMem_Free(ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_VectorcallDict(ptr, ptr, i64, ptr)
declare i32 @PyObject_IsTrue(ptr)
declare ptr @PyDict_New()
declare ptr @PyDict_GetItem(ptr, ptr)
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare i64 @PyList_Size(ptr)
declare ptr @PyTuple_New(i64)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyBytes_AsString(ptr)
declare i64 @PyBytes_Size(ptr)
declare ptr @PyBytes_FromStringAndSize(ptr, i64)
declare double @PyFloat_AsDouble(ptr)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @memcmp(ptr, ptr, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.fshl.i64(i64, i64, i64)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.abs.i64(i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare double @llvm.fabs.f64(double)
declare float @llvm.fabs.f32(float)

; --- what Python calls ---------------------------------------------------------------------------------------------------

; `Operator.__call__`, METH_FASTCALL | METH_KEYWORDS.
define ptr @polyop_call(ptr %self, ptr %args, i64 %given, ptr %names) {
entry:
  %values = alloca %places
  %at = alloca [PLACES x i64]
  %words = alloca %words
  %outline = alloca %words
  %attribute = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 5)
  %tuple = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 10)
  %entry.object = call ptr @PyObject_GetAttr(ptr %self, ptr %attribute)
  %lost = icmp eq ptr %entry.object, null
  br i1 %lost, label %error, label %typed
error:
  call void @PyErr_Clear()
  br label %general
typed:
  %type.at = getelementptr %object, ptr %entry.object, i64 0, i32 1
  %type = load ptr, ptr %type.at
  %has = icmp eq ptr %type, %tuple
  br i1 %has, label %open, label %leave
open:
  %table = call ptr @PyTuple_GetItem(ptr %entry.object, i64 0)
  %info.object = call ptr @PyTuple_GetItem(ptr %entry.object, i64 1)
  %info = call ptr @PyBytes_AsString(ptr %info.object)
  %total = call i64 @gather(ptr %info, ptr %args, i64 %given, ptr %names, ptr %values)
  %plain = icmp sge i64 %total, 0
  br i1 %plain, label %see, label %leave
see:
  %used = call i64 @look(i1 false, i1 false, ptr %info, ptr %values, i64 %total, ptr %words, ptr %at)
  %clear = icmp ne i64 %used, 0
  br i1 %clear, label %search, label %leave
search:
  %exact = call ptr @find(ptr %table, ptr %words, i64 %used)
  %seen = icmp ne ptr %exact, null
  br i1 %seen, label %go, label %similar
similar:
  %outline.used = call i64 @look(i1 true, i1 false, ptr %info, ptr %values, i64 %total, ptr %outline, ptr %at)
  %rough = call ptr @find(ptr %table, ptr %outline, i64 %outline.used)
  %known = icmp ne ptr %rough, null
  br i1 %known, label %go, label %leave
go:
  %record = phi ptr [ %exact, %search ], [ %rough, %similar ]
  %result = call ptr @follow(ptr %record, ptr %words, ptr %values, ptr %at)
  %done = icmp ne ptr %result, null
  br i1 %done, label %end, label %leave
end:
  call void @Py_DecRef(ptr %entry.object)
  ret ptr %result
leave:
  call void @Py_DecRef(ptr %entry.object)
  br label %general

general:
  %bytes = shl i64 %given, 3
  %room = add i64 %bytes, 8
  %stack = call ptr @PyMem_Malloc(i64 %room)
  %full = icmp eq ptr %stack, null
  br i1 %full, label %none, label %pass
none:
  %nothing = call ptr @PyErr_NoMemory()
  ret ptr null
pass:
  store ptr %self, ptr %stack
  %behind = getelementptr ptr, ptr %stack, i64 1
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %behind, ptr align 8 %args, i64 %bytes, i1 false)
  %named = icmp ne ptr %names, null
  br i1 %named, label %count, label %through
count:
  %dict = call ptr @PyDict_New()
  %dict.lost = icmp eq ptr %dict, null
  br i1 %dict.lost, label %free, label %keywords
keywords:
  %extra = call i64 @PyTuple_Size(ptr %names)
  %values.named = getelementptr ptr, ptr %args, i64 %given
  br label %keyword
keyword:
  %j = phi i64 [ 0, %keywords ], [ %j1, %set ]
  %more = icmp slt i64 %j, %extra
  br i1 %more, label %set, label %through
set:
  %name = call ptr @PyTuple_GetItem(ptr %names, i64 %j)
  %value.at = getelementptr ptr, ptr %values.named, i64 %j
  %value = load ptr, ptr %value.at
  %failed = call i32 @PyDict_SetItem(ptr %dict, ptr %name, ptr %value)
  %j1 = add i64 %j, 1
  %was.set = icmp eq i32 %failed, 0
  br i1 %was.set, label %keyword, label %undo
undo:
  call void @Py_DecRef(ptr %dict)
  br label %free
through:
  %by.name = phi ptr [ null, %pass ], [ %dict, %keyword ]
  %with.self = add i64 %given, 1
  %function = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 4)
  %answer = call ptr @PyObject_VectorcallDict(ptr %function, ptr %stack, i64 %with.self, ptr %by.name)
  %no.dict = icmp eq ptr %by.name, null
  br i1 %no.dict, label %free, label %forget
forget:
  call void @Py_DecRef(ptr %by.name)
  br label %free
free:
  %said = phi ptr [ null, %count ], [ null, %undo ], [ %answer, %through ], [ %answer, %forget ]
  call void @PyMem_Free(ptr %stack)
  ret ptr %said
}

; Carries out the plan of %record for a call with the look %words: the new result, or null if the general way has to decide.
define internal ptr @follow(ptr %record, ptr %words, ptr %values, ptr %at) {
entry:
  call void @Py_IncRef(ptr %record) ; the table may lose it meanwhile
  %plan.object = call ptr @PyTuple_GetItem(ptr %record, i64 1)
  %plan.found = call ptr @PyBytes_AsString(ptr %plan.object)
  %sizes.at = getelementptr i64, ptr %plan.found, i64 11
  %sizes = load ptr, ptr %sizes.at
  %fixed = icmp eq ptr %sizes, null
  br i1 %fixed, label %carry.out, label %adapt
adapt:
  %plan.bytes = call i64 @PyBytes_Size(ptr %plan.object)
  %plan.own = alloca i8, i64 %plan.bytes, align 16
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %plan.own, ptr align 8 %plan.found, i64 %plan.bytes, i1 false)
  %unfit = call i64 %sizes(ptr %words, ptr %plan.own)
  %fits = icmp eq i64 %unfit, 0
  br i1 %fits, label %carry.out, label %refused
carry.out:
  %plan = phi ptr [ %plan.found, %entry ], [ %plan.own, %adapt ]
  %made = call ptr @run(ptr %record, ptr %plan, ptr %values, ptr %at)
  br label %refused
refused:
  %result = phi ptr [ null, %adapt ], [ %made, %carry.out ]
  call void @Py_DecRef(ptr %record)
  ret ptr %result
}

; `carry((table, info), record, *args, **keywords)`: the result of a call, or NotImplemented if the general way has to decide.
define ptr @polyop_carry(ptr %self, ptr %args, i64 %given, ptr %names) {
entry:
  %values = alloca %places
  %at = alloca [PLACES x i64]
  %words = alloca %words
  %entry.object = load ptr, ptr %args
  %record.at = getelementptr ptr, ptr %args, i64 1
  %record = load ptr, ptr %record.at
  %info.object = call ptr @PyTuple_GetItem(ptr %entry.object, i64 1)
  %info = call ptr @PyBytes_AsString(ptr %info.object)
  %behind = getelementptr ptr, ptr %args, i64 2
  %rest = sub i64 %given, 2
  %total = call i64 @gather(ptr %info, ptr %behind, i64 %rest, ptr %names, ptr %values)
  %plain = icmp sge i64 %total, 0
  br i1 %plain, label %see, label %none
see:
  %used = call i64 @look(i1 false, i1 false, ptr %info, ptr %values, i64 %total, ptr %words, ptr %at)
  %clear = icmp ne i64 %used, 0
  br i1 %clear, label %go, label %none
go:
  %result = call ptr @follow(ptr %record, ptr %words, ptr %values, ptr %at)
  %done = icmp ne ptr %result, null
  br i1 %done, label %end, label %none
end:
  ret ptr %result
none:
  call void @Py_IncRef(ptr @_Py_NotImplementedStruct)
  ret ptr @_Py_NotImplementedStruct
}

; `look((table, info), *args, **keywords)`: the look of a call as bytes, or None.
define ptr @polyop_look(ptr %self, ptr %args, i64 %given, ptr %names) {
  %result = call ptr @see(i1 false, i1 false, ptr %args, i64 %given, ptr %names)
  ret ptr %result
}

; The same for the outline.
define ptr @polyop_outline(ptr %self, ptr %args, i64 %given, ptr %names) {
  %result = call ptr @see(i1 true, i1 false, ptr %args, i64 %given, ptr %names)
  ret ptr %result
}

; The same for the form.
define ptr @polyop_form(ptr %self, ptr %args, i64 %given, ptr %names) {
  %result = call ptr @see(i1 true, i1 true, ptr %args, i64 %given, ptr %names)
  ret ptr %result
}

define internal ptr @see(i1 %outline, i1 %form, ptr %args, i64 %given, ptr %names) {
entry:
  %values = alloca %places
  %at = alloca [PLACES x i64]
  %words = alloca %words
  %entry.object = load ptr, ptr %args
  %info.object = call ptr @PyTuple_GetItem(ptr %entry.object, i64 1)
  %info = call ptr @PyBytes_AsString(ptr %info.object)
  %behind = getelementptr ptr, ptr %args, i64 1
  %rest = sub i64 %given, 1
  %total = call i64 @gather(ptr %info, ptr %behind, i64 %rest, ptr %names, ptr %values)
  %plain = icmp sge i64 %total, 0
  br i1 %plain, label %see, label %none
see:
  %used = call i64 @look(i1 %outline, i1 %form, ptr %info, ptr %values, i64 %total, ptr %words, ptr %at)
  %clear = icmp ne i64 %used, 0
  br i1 %clear, label %give, label %none
give:
  %bytes = shl i64 %used, 3
  %result = call ptr @PyBytes_FromStringAndSize(ptr %words, i64 %bytes)
  ret ptr %result
none:
  %nothing = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 9)
  call void @Py_IncRef(ptr %nothing)
  ret ptr %nothing
}
