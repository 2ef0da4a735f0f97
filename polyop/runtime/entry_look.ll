; The first half of entry.ll: what a call looks like, and the record of it.

; --- the values of a call ------------------------------------------------------------------------------------------------

; Puts what is given for each parameter into %values, null where nothing is, and the arrays of `out` behind; how many these
; are in all, or -1 if this is not plainly right. %info is: parameters, how many of them may go by position, then the name
; of each and whether its value chooses the Op.
define internal i64 @gather(ptr %info, ptr %args, i64 %given, ptr %names, ptr %values) {
entry:
  %n = load i64, ptr %info
  %most.at = getelementptr i64, ptr %info, i64 1
  %most = load i64, ptr %most.at
  %fits = icmp ule i64 %given, %most
  br i1 %fits, label %fill, label %no
fill:
  %head = shl i64 %given, 3
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %values, ptr align 8 %args, i64 %head, i1 false)
  %rest = getelementptr ptr, ptr %values, i64 %given
  %missing = sub i64 %n, %given
  %tail = shl i64 %missing, 3
  call void @llvm.memset.p0.i64(ptr align 8 %rest, i8 0, i64 %tail, i1 false)
  %plain = icmp eq ptr %names, null
  br i1 %plain, label %all, label %named
named:
  %count = call i64 @PyTuple_Size(ptr %names)
  %extra = getelementptr ptr, ptr %args, i64 %given
  %out = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 8)
  br label %name
name:
  %j = phi i64 [ 0, %named ], [ %j1, %next ]
  %total = phi i64 [ %n, %named ], [ %total1, %next ]
  %more = icmp slt i64 %j, %count
  br i1 %more, label %one, label %done
one:
  %key = call ptr @PyTuple_GetItem(ptr %names, i64 %j)
  %value.at = getelementptr ptr, ptr %extra, i64 %j
  %value = load ptr, ptr %value.at
  %is.out = icmp eq ptr %key, %out
  br i1 %is.out, label %outs, label %search
search:
  %k = phi i64 [ 0, %one ], [ %k1, %other ]
  %known = icmp slt i64 %k, %n
  br i1 %known, label %compare, label %no
compare:
  %twice = shl i64 %k, 1
  %slot = add i64 %twice, 2
  %name.at = getelementptr i64, ptr %info, i64 %slot
  %mine = load ptr, ptr %name.at
  %same = icmp eq ptr %mine, %key
  %k1 = add i64 %k, 1
  br i1 %same, label %found, label %other
other:
  br label %search
found:
  %place = getelementptr ptr, ptr %values, i64 %k
  %before = load ptr, ptr %place
  %free = icmp eq ptr %before, null
  br i1 %free, label %put, label %no
put:
  store ptr %value, ptr %place
  br label %next
outs:
  %none = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 9)
  %nothing = icmp eq ptr %value, %none
  br i1 %nothing, label %next, label %some
some:
  %type.at = getelementptr %object, ptr %value, i64 0, i32 1
  %type = load ptr, ptr %type.at
  %tuple = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 10)
  %many = icmp eq ptr %type, %tuple
  br i1 %many, label %several, label %lonely
lonely: ; a list, or whatever else may be one or several
  %ndarray = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 0)
  %torch = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 14)
  %is.array = icmp eq ptr %type, %ndarray
  %is.tensor = icmp eq ptr %type, %torch
  %plain.out = or i1 %is.array, %is.tensor
  br i1 %plain.out, label %single, label %no
single:
  %end = getelementptr ptr, ptr %values, i64 %n
  store ptr %value, ptr %end
  %with = add i64 %n, 1
  br label %next
several:
  %size = call i64 @PyTuple_Size(ptr %value)
  %with.all = add i64 %n, %size
  %room = icmp sle i64 %with.all, PLACES
  br i1 %room, label %item, label %no
item:
  %i = phi i64 [ 0, %several ], [ %i1, %take ]
  %left = icmp slt i64 %i, %size
  br i1 %left, label %take, label %next
take:
  %element = call ptr @PyTuple_GetItem(ptr %value, i64 %i)
  %to = add i64 %n, %i
  %to.at = getelementptr ptr, ptr %values, i64 %to
  store ptr %element, ptr %to.at
  %i1 = add i64 %i, 1
  br label %item
next:
  %total1 = phi i64 [ %total, %put ], [ %total, %outs ], [ %with, %single ], [ %with.all, %item ]
  %j1 = add i64 %j, 1
  br label %name
all:
  ret i64 %n
done:
  ret i64 %total
no:
  ret i64 -1
}

; What torch tells about a tensor, into %t; 0 if kernels may read it as it is.
define internal i32 @examine(ptr %value, ptr %t) {
entry:
  %from = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 16)
  %failed = call i32 %from(ptr %value, ptr %t)
  %good = icmp eq i32 %failed, 0
  br i1 %good, label %device, label %error
device:
  %device.at = getelementptr %tensor, ptr %t, i64 0, i32 1
  %kind = load i32, ptr %device.at
  switch i32 %kind, label %no [ i32 1, label %gradient    ; CPU
                                i32 2, label %gradient    ; CUDA
                                i32 10, label %gradient ] ; ROCm
gradient:
  %name = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 17)
  %requires = call ptr @PyObject_GetAttr(ptr %value, ptr %name)
  %known = icmp eq ptr %requires, null
  br i1 %known, label %error, label %asked
asked:
  call void @Py_DecRef(ptr %requires)
  %true = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 18)
  %wanted = icmp eq ptr %requires, %true
  br i1 %wanted, label %enabled, label %negative
enabled:
  %is.enabled = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 19)
  %on = call ptr @PyObject_VectorcallDict(ptr %is.enabled, ptr null, i64 0, ptr null)
  %on.lost = icmp eq ptr %on, null
  br i1 %on.lost, label %error, label %on.known
on.known:
  call void @Py_DecRef(ptr %on)
  %tracked = icmp eq ptr %on, %true
  br i1 %tracked, label %no, label %negative
negative:
  %cell = alloca ptr
  store ptr %value, ptr %cell
  %is.neg = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 20)
  %neg = call ptr @PyObject_VectorcallDict(ptr %is.neg, ptr %cell, i64 1, ptr null)
  %neg.lost = icmp eq ptr %neg, null
  br i1 %neg.lost, label %error, label %neg.known
neg.known:
  call void @Py_DecRef(ptr %neg)
  %lazy = icmp eq ptr %neg, %true
  br i1 %lazy, label %no, label %yes
yes:
  ret i32 0
error:
  call void @PyErr_Clear()
  br label %no
no:
  ret i32 1
}

; --- the look of a call --------------------------------------------------------------------------------------------------

; Writes the look of %total values to %words, or its outline or form, and where arrays lie to %at; how many words these are, or 0.
; The first word is a hash of the others. A form is an outline, too.
define internal i64 @look(i1 %outline, i1 %form, ptr %info, ptr %values, i64 %total, ptr %words, ptr %at) {
entry:
  %t = alloca %tensor
  %over = alloca i32
  %ndarray = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 0)
  %torch = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 14)
  %weight = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 15)
  %space = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 6)
  %setting = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 7)
  %threads = call ptr @PyDict_GetItem(ptr %space, ptr %setting)
  %w1 = getelementptr i64, ptr %words, i64 1
  store ptr %threads, ptr %w1
  %w2 = getelementptr i64, ptr %words, i64 2
  %sort = zext i1 %outline to i64
  %total.twice = shl i64 %total, 1
  %is.form = zext i1 %form to i64
  %form.bit = shl i64 %is.form, 32
  %outlined = or i64 %total.twice, %sort
  %kind = or i64 %outlined, %form.bit
  store i64 %kind, ptr %w2
  %n = load i64, ptr %info
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %used = phi i64 [ 3, %entry ], [ %used1, %next ]
  %more = icmp slt i64 %k, %total
  br i1 %more, label %room, label %finish
room:
  %here = getelementptr i64, ptr %words, i64 %used
  %enough = icmp sle i64 %used, MARGIN
  br i1 %enough, label %body, label %no
body:
  %value.at = getelementptr ptr, ptr %values, i64 %k
  %value = load ptr, ptr %value.at
  %absent = icmp eq ptr %value, null
  br i1 %absent, label %nothing, label %some
nothing:
  store i64 0, ptr %here
  %after.nothing = add i64 %used, 1
  br label %next
some:
  %type.at = getelementptr %object, ptr %value, i64 0, i32 1
  %type = load ptr, ptr %type.at
  store ptr %type, ptr %here
  %second = getelementptr i64, ptr %here, i64 1
  %chooses = call i1 @chooses(ptr %info, i64 %n, i64 %k)
  br i1 %chooses, label %fixed, label %array

array:
  %is.array = icmp eq ptr %type, %ndarray
  br i1 %is.array, label %numpy, label %framework
numpy:
  %dtype.at = getelementptr %array, ptr %value, i64 0, i32 7
  %dtype = load i64, ptr %dtype.at
  store i64 %dtype, ptr %second
  %data.at = getelementptr %array, ptr %value, i64 0, i32 2
  %data = load i64, ptr %data.at
  %rank.at = getelementptr %array, ptr %value, i64 0, i32 3
  %rank = load i32, ptr %rank.at
  %shape.at = getelementptr %array, ptr %value, i64 0, i32 4
  %shape = load ptr, ptr %shape.at
  %strides.at = getelementptr %array, ptr %value, i64 0, i32 5
  %strides = load ptr, ptr %strides.at
  br label %extents
framework:
  %has.torch = icmp ne ptr %torch, null
  %is.tensor = icmp eq ptr %type, %torch
  %is.weight = icmp eq ptr %type, %weight
  %either = or i1 %is.tensor, %is.weight
  %tensor = and i1 %has.torch, %either
  br i1 %tensor, label %ask, label %number
ask:
  %unfit = call i32 @examine(ptr %value, ptr %t)
  %fit = icmp eq i32 %unfit, 0
  br i1 %fit, label %dlpack, label %no
dlpack:
  %t.dtype.at = getelementptr %tensor, ptr %t, i64 0, i32 4
  %t.dtype = load i32, ptr %t.dtype.at
  %t.dtype.word = zext i32 %t.dtype to i64
  %t.kind.at = getelementptr %tensor, ptr %t, i64 0, i32 1
  %t.kind = load i32, ptr %t.kind.at
  %t.number.at = getelementptr %tensor, ptr %t, i64 0, i32 2
  %t.number = load i32, ptr %t.number.at
  %t.here = icmp eq i32 %t.kind, 1
  %t.kind.high = shl i32 %t.kind, 24
  %t.device = or i32 %t.kind.high, %t.number
  %t.device.word = zext i32 %t.device to i64
  %t.device.high = shl i64 %t.device.word, 32
  %t.place = select i1 %t.here, i64 0, i64 %t.device.high
  %t.what = or i64 %t.place, %t.dtype.word
  store i64 %t.what, ptr %second
  %t.data = load i64, ptr %t
  %offset.at = getelementptr %tensor, ptr %t, i64 0, i32 7
  %offset = load i64, ptr %offset.at
  %t.address = add i64 %t.data, %offset
  %t.rank.at = getelementptr %tensor, ptr %t, i64 0, i32 3
  %t.rank = load i32, ptr %t.rank.at
  %t.shape.at = getelementptr %tensor, ptr %t, i64 0, i32 5
  %t.shape = load ptr, ptr %t.shape.at
  %t.strides.at = getelementptr %tensor, ptr %t, i64 0, i32 6
  %t.strides = load ptr, ptr %t.strides.at
  %has.strides = icmp ne ptr %t.strides, null
  %has.none = icmp eq i32 %t.rank, 0
  %told = or i1 %has.strides, %has.none
  br i1 %told, label %extents, label %no
extents:
  %address = phi i64 [ %data, %numpy ], [ %t.address, %dlpack ]
  %dims = phi i32 [ %rank, %numpy ], [ %t.rank, %dlpack ]
  %extent = phi ptr [ %shape, %numpy ], [ %t.shape, %dlpack ]
  %stride = phi ptr [ %strides, %numpy ], [ %t.strides, %dlpack ]
  %at.k = getelementptr i64, ptr %at, i64 %k
  store i64 %address, ptr %at.k
  %nd = sext i32 %dims to i64
  %third = getelementptr i64, ptr %here, i64 2
  store i64 %nd, ptr %third
  %small = icmp ule i64 %nd, RANK
  br i1 %small, label %dim, label %no
dim:
  %d = phi i64 [ 0, %extents ], [ %d1, %put.dim ]
  %w = phi i64 [ 3, %extents ], [ %wn, %put.dim ]
  %inside = icmp slt i64 %d, %nd
  br i1 %inside, label %write, label %written
write:
  %from.shape = getelementptr i64, ptr %extent, i64 %d
  %extent.exact = load i64, ptr %from.shape
  %before = sub i64 %extent.exact, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %before, i1 false)
  %bits = sub i64 64, %zeros ; 0 for 1, k for 2**(k-1) < extent <= 2**k, 64 for 0
  %less = sub i64 %bits, 1
  %several = icmp ult i64 %less, 63
  %class = select i1 %several, i64 1, i64 %bits
  %rough = select i1 %form, i64 %class, i64 %bits
  %e = select i1 %outline, i64 %rough, i64 %extent.exact
  %to.shape = getelementptr i64, ptr %here, i64 %w
  store i64 %e, ptr %to.shape
  %from.strides = getelementptr i64, ptr %stride, i64 %d
  %stride.exact = load i64, ptr %from.strides
  %stride.small = call i64 @llvm.umin.i64(i64 %stride.exact, i64 17) ; may be one element, or is something else
  %d1 = add i64 %d, 1
  %last = sub i64 %nd, 1
  %inner = call i64 @llvm.umin.i64(i64 %d1, i64 %last)
  %inner.shape = getelementptr i64, ptr %extent, i64 %inner
  %inner.extent = load i64, ptr %inner.shape
  %inner.strides = getelementptr i64, ptr %stride, i64 %inner
  %inner.stride = load i64, ptr %inner.strides
  %reach = mul i64 %inner.stride, %inner.extent
  %follows = icmp eq i64 %stride.exact, %reach ; its elements lie one after the other with those of the next dimension
  %is.last = icmp eq i64 %d, %last
  %shown = or i1 %follows, %is.last ; where it is among the others, too
  %exact = xor i1 %outline, true
  %single = icmp ule i64 %extent.exact, 1
  %nowhere = or i1 %exact, %single
  %placed = or i1 %shown, %nowhere
  %own.step = call i64 @llvm.abs.i64(i64 %stride.exact, i1 false)
  br i1 %placed, label %put.dim, label %above
above: ; how many strides are larger: which dimensions are outside this one
  %o = phi i64 [ 0, %write ], [ %o1, %other ]
  %larger = phi i64 [ 0, %write ], [ %larger1, %other ]
  %another = icmp slt i64 %o, %nd
  br i1 %another, label %other, label %put.dim
other:
  %o.shape = getelementptr i64, ptr %extent, i64 %o
  %o.extent = load i64, ptr %o.shape
  %o.strides = getelementptr i64, ptr %stride, i64 %o
  %o.stride = load i64, ptr %o.strides
  %o.step = call i64 @llvm.abs.i64(i64 %o.stride, i1 false)
  %o.several = icmp ugt i64 %o.extent, 1
  %o.longer = icmp ugt i64 %o.step, %own.step
  %o.outside = and i1 %o.several, %o.longer
  %o.counts = select i1 %o.outside, i64 64, i64 0
  %larger1 = add i64 %larger, %o.counts
  %o1 = add i64 %o, 1
  br label %above
put.dim:
  %outside = phi i64 [ 0, %write ], [ %larger, %above ]
  %stride.placed = or i64 %stride.small, %outside
  %stride.rough = select i1 %follows, i64 32, i64 %stride.placed ; what this one is, the next ones show
  %s = select i1 %outline, i64 %stride.rough, i64 %stride.exact
  %to.strides = getelementptr i64, ptr %to.shape, i64 1
  store i64 %s, ptr %to.strides
  %wn = add i64 %w, 2
  br label %dim
written:
  %after.array = add i64 %used, %w
  br label %next

number:
  %after.number = add i64 %used, 1
  br label %next
fixed:
  %int = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 11)
  %bool = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 12)
  %float = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 13)
  %is.int = icmp eq ptr %type, %int
  %is.bool = icmp eq ptr %type, %bool
  %integer = or i1 %is.int, %is.bool
  br i1 %integer, label %integral, label %fraction
integral:
  %i = call i64 @PyLong_AsLongLongAndOverflow(ptr %value, ptr %over)
  %lost = load i32, ptr %over
  %whole = icmp eq i32 %lost, 0
  store i64 %i, ptr %second
  br i1 %whole, label %valued, label %no
fraction:
  %is.float = icmp eq ptr %type, %float
  br i1 %is.float, label %real, label %no
real:
  %r = call double @PyFloat_AsDouble(ptr %value)
  store double %r, ptr %second
  br label %valued
valued:
  %after.value = add i64 %used, 2
  br label %next

next:
  %used1 = phi i64 [ %after.nothing, %nothing ], [ %after.array, %written ], [ %after.number, %number ], [ %after.value, %valued ]
  %k1 = add i64 %k, 1
  br label %head
finish:
  br label %mix
mix:
  %m = phi i64 [ 1, %finish ], [ %m1, %mix ]
  %h = phi i64 [ 0, %finish ], [ %h1, %mix ]
  %from = getelementptr i64, ptr %words, i64 %m
  %word = load i64, ptr %from
  %turned = call i64 @llvm.fshl.i64(i64 %h, i64 %h, i64 7)
  %h1 = xor i64 %turned, %word
  %m1 = add i64 %m, 1
  %again = icmp slt i64 %m1, %used
  br i1 %again, label %mix, label %hashed
hashed:
  %hash = mul i64 %h1, -7046029254386353131 ; 2**64 over the golden ratio: the upper bits then depend on all others
  store i64 %hash, ptr %words
  ret i64 %used
no:
  ret i64 0
}

; Whether the value of place %k chooses the Op.
define internal i1 @chooses(ptr %info, i64 %n, i64 %k) {
entry:
  %parameter = icmp slt i64 %k, %n
  br i1 %parameter, label %ask, label %no
ask:
  %twice = shl i64 %k, 1
  %slot = add i64 %twice, 3
  %at = getelementptr i64, ptr %info, i64 %slot
  %flag = load i64, ptr %at
  %yes = icmp ne i64 %flag, 0
  ret i1 %yes
no:
  ret i1 false
}

; The record with this look, or null. The length of a table is a power of 2; a record stands at one of two places.
define internal ptr @find(ptr %table, ptr %words, i64 %used) {
entry:
  %hash = load i64, ptr %words
  %upper = lshr i64 %hash, 32
  %length = call i64 @PyList_Size(ptr %table)
  %mask = sub i64 %length, 1
  %first = and i64 %upper, %mask
  %bytes = shl i64 %used, 3
  %none = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 9)
  br label %try
try:
  %flip = phi i64 [ 0, %entry ], [ 1, %second ]
  %index = xor i64 %first, %flip
  %record = call ptr @PyList_GetItem(ptr %table, i64 %index)
  %empty = icmp eq ptr %record, %none
  br i1 %empty, label %after, label %open
open:
  %look = call ptr @PyTuple_GetItem(ptr %record, i64 0)
  %size = call i64 @PyBytes_Size(ptr %look)
  %fits = icmp eq i64 %size, %bytes
  br i1 %fits, label %compare, label %after
compare:
  %theirs = call ptr @PyBytes_AsString(ptr %look)
  %differ = call i32 @memcmp(ptr %theirs, ptr %words, i64 %bytes)
  %same = icmp eq i32 %differ, 0
  br i1 %same, label %found, label %after
after:
  %last = icmp eq i64 %flip, 1
  br i1 %last, label %nowhere, label %second
second:
  br label %try
found:
  ret ptr %record
nowhere:
  ret ptr null
}
