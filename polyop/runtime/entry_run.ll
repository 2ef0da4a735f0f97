; The second half: how a plan is carried out.

; Carries out %plan, that of %record, with %values that lie at %at: the new result, or null if the general way has to decide.
;
; The plan's words:  kernel, length of the row, whether others may run meanwhile, bytes of work memory, which of the record
; gives more than the stack has, then how many there are of: arrays, written ones, numbers, new results, work buffers and
; results; the function that writes sizes into the plan, or 0. After these twelve, with `value` a place among the values and `slot` one in the row:
;   row        the slots, with everything that is the same in each such call
;   arrays     value, slot, bits of the address that must be 0
;   written    value, slot, first and last byte from the address, others; for each of these: slot, first, last
;   numbers    value, slot, how (see @number), least, greatest
;   new        slot, how (0 a NumPy array, 1 a call that gives an array and its address, 2 like a tensor, 3 a tensor, 4 a NumPy
;              array upon a kept block, 5 a tensor upon such an array, 6 a call that gives an array of
;              these extents and its address), which of the record, bytes (4 and 5: at which multiples it begins), rank, extents
;   work       slot, distance
;   results    the number of a new one, or ~value
define internal ptr @run(ptr %record, ptr %plan, ptr %values, ptr %at) {
entry:
  %made = alloca [PLACES x ptr]
  %argument = alloca ptr
  %t = alloca %tensor
  %kernel = load ptr, ptr %plan
  %slots.at = getelementptr i64, ptr %plan, i64 1
  %slots = load i64, ptr %slots.at
  %long.at = getelementptr i64, ptr %plan, i64 2
  %long = load i64, ptr %long.at
  %memory.at = getelementptr i64, ptr %plan, i64 3
  %memory = load i64, ptr %memory.at
  %arena.at = getelementptr i64, ptr %plan, i64 4
  %arena = load i64, ptr %arena.at
  %arrays.at = getelementptr i64, ptr %plan, i64 5
  %arrays = load i64, ptr %arrays.at
  %written.at = getelementptr i64, ptr %plan, i64 6
  %written = load i64, ptr %written.at
  %numbers.at = getelementptr i64, ptr %plan, i64 7
  %numbers = load i64, ptr %numbers.at
  %fresh.at = getelementptr i64, ptr %plan, i64 8
  %fresh = load i64, ptr %fresh.at
  %works.at = getelementptr i64, ptr %plan, i64 9
  %works = load i64, ptr %works.at
  %results.at = getelementptr i64, ptr %plan, i64 10
  %results = load i64, ptr %results.at
  %template = getelementptr i64, ptr %plan, i64 12
  %row = alloca i64, i64 %slots, align 16
  %row.bytes = shl i64 %slots, 3
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %row, ptr align 8 %template, i64 %row.bytes, i1 false)
  %p.arrays = getelementptr i64, ptr %template, i64 %slots
  br label %arrays.head

arrays.head:
  %a = phi i64 [ 0, %entry ], [ %a1, %arrays.put ]
  %pa = phi ptr [ %p.arrays, %entry ], [ %pa1, %arrays.put ]
  %a.more = icmp slt i64 %a, %arrays
  br i1 %a.more, label %arrays.one, label %written.head
arrays.one:
  %a.value = load i64, ptr %pa
  %a.slot.at = getelementptr i64, ptr %pa, i64 1
  %a.slot = load i64, ptr %a.slot.at
  %a.mask.at = getelementptr i64, ptr %pa, i64 2
  %a.mask = load i64, ptr %a.mask.at
  %a.at = getelementptr i64, ptr %at, i64 %a.value
  %address = load i64, ptr %a.at
  %low = and i64 %address, %a.mask
  %aligned = icmp eq i64 %low, 0
  %is.there = icmp ne i64 %address, 0
  %a.good = and i1 %aligned, %is.there
  br i1 %a.good, label %arrays.put, label %no
arrays.put:
  %a.to = getelementptr i64, ptr %row, i64 %a.slot
  store i64 %address, ptr %a.to
  %a1 = add i64 %a, 1
  %pa1 = getelementptr i64, ptr %pa, i64 3
  br label %arrays.head

written.head:
  %w = phi i64 [ 0, %arrays.head ], [ %w1, %others.head ]
  %pw = phi ptr [ %pa, %arrays.head ], [ %po, %others.head ]
  %w.more = icmp slt i64 %w, %written
  br i1 %w.more, label %written.one, label %numbers.head
written.one:
  %w.value = load i64, ptr %pw
  %w.slot.at = getelementptr i64, ptr %pw, i64 1
  %w.slot = load i64, ptr %w.slot.at
  %w.first.at = getelementptr i64, ptr %pw, i64 2
  %w.first = load i64, ptr %w.first.at
  %w.last.at = getelementptr i64, ptr %pw, i64 3
  %w.last = load i64, ptr %w.last.at
  %others.at = getelementptr i64, ptr %pw, i64 4
  %others = load i64, ptr %others.at
  %po0 = getelementptr i64, ptr %pw, i64 5
  %w.from = getelementptr i64, ptr %row, i64 %w.slot
  %w.address = load i64, ptr %w.from
  %mine.first = add i64 %w.address, %w.first
  %mine.last = add i64 %w.address, %w.last
  %w.object.at = getelementptr ptr, ptr %values, i64 %w.value
  %w.object = load ptr, ptr %w.object.at
  %w.type.at = getelementptr %object, ptr %w.object, i64 0, i32 1
  %w.type = load ptr, ptr %w.type.at
  %ndarray = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 0)
  %is.array = icmp eq ptr %w.type, %ndarray
  %w1 = add i64 %w, 1
  br i1 %is.array, label %may.write, label %others.head
may.write:
  %flags.at = getelementptr %array, ptr %w.object, i64 0, i32 8
  %flags = load i32, ptr %flags.at
  %of.writing = and i32 %flags, -2147482624 ; WRITEABLE, and the flag for views that warn when they are written
  %writeable = icmp eq i32 %of.writing, 1024
  br i1 %writeable, label %others.head, label %no
others.head:
  %o = phi i64 [ 0, %written.one ], [ 0, %may.write ], [ %o1, %others.one ]
  %po = phi ptr [ %po0, %written.one ], [ %po0, %may.write ], [ %po1, %others.one ]
  %o.more = icmp slt i64 %o, %others
  br i1 %o.more, label %others.one, label %written.head
others.one:
  %o.slot = load i64, ptr %po
  %o.first.at = getelementptr i64, ptr %po, i64 1
  %o.first = load i64, ptr %o.first.at
  %o.last.at = getelementptr i64, ptr %po, i64 2
  %o.last = load i64, ptr %o.last.at
  %o.from = getelementptr i64, ptr %row, i64 %o.slot
  %o.address = load i64, ptr %o.from
  %their.first = add i64 %o.address, %o.first
  %their.last = add i64 %o.address, %o.last
  %begins = icmp slt i64 %their.first, %mine.last
  %ends = icmp slt i64 %mine.first, %their.last
  %meet = and i1 %begins, %ends
  %o1 = add i64 %o, 1
  %po1 = getelementptr i64, ptr %po, i64 3
  br i1 %meet, label %no, label %others.head

numbers.head:
  %s = phi i64 [ 0, %written.head ], [ %s1, %numbers.next ]
  %ps = phi ptr [ %pw, %written.head ], [ %ps1, %numbers.next ]
  %s.more = icmp slt i64 %s, %numbers
  br i1 %s.more, label %numbers.one, label %fresh.start
numbers.one:
  %s.value = load i64, ptr %ps
  %s.object.at = getelementptr ptr, ptr %values, i64 %s.value
  %s.object = load ptr, ptr %s.object.at
  %s1 = add i64 %s, 1
  %ps1 = getelementptr i64, ptr %ps, i64 5
  %default = icmp eq ptr %s.object, null
  br i1 %default, label %numbers.next, label %numbers.put
numbers.put:
  %s.slot.at = getelementptr i64, ptr %ps, i64 1
  %s.slot = load i64, ptr %s.slot.at
  %s.to = getelementptr i64, ptr %row, i64 %s.slot
  %s.fits = call i1 @number(ptr %s.object, ptr %ps, ptr %s.to)
  br i1 %s.fits, label %numbers.next, label %no
numbers.next:
  br label %numbers.head

fresh.start:
  br label %fresh.head
fresh.head:
  %f = phi i64 [ 0, %fresh.start ], [ %f1, %fresh.put ]
  %pf = phi ptr [ %ps, %fresh.start ], [ %pf1, %fresh.put ]
  %f.more = icmp slt i64 %f, %fresh
  br i1 %f.more, label %fresh.one, label %work
fresh.one:
  %f.rank.at = getelementptr i64, ptr %pf, i64 4
  %f.rank = load i64, ptr %f.rank.at
  %f.dims = getelementptr i64, ptr %pf, i64 5
  %pf1 = getelementptr i64, ptr %f.dims, i64 %f.rank
  %f.which.at = getelementptr i64, ptr %pf, i64 2
  %f.which = load i64, ptr %f.which.at
  %means = call ptr @PyTuple_GetItem(ptr %record, i64 %f.which)
  %f.how.at = getelementptr i64, ptr %pf, i64 1
  %f.how = load i64, ptr %f.how.at
  switch i64 %f.how, label %fresh.numpy [ i64 1, label %fresh.call
                                          i64 2, label %fresh.torch
                                          i64 3, label %fresh.shaped
                                          i64 4, label %fresh.kept
                                          i64 5, label %fresh.kept
                                          i64 6, label %fresh.sized ]
fresh.numpy:
  %f.bytes.at = getelementptr i64, ptr %pf, i64 3
  %array = call ptr @empty(ptr %means, i64 %f.rank, ptr %f.dims, ptr %f.bytes.at)
  %array.lost = icmp eq ptr %array, null
  br i1 %array.lost, label %sorry, label %fresh.data
fresh.kept: ; (dtype, blocks, how to make one; what makes a tensor of it)
  %kept = call ptr @PyTuple_GetItem(ptr %means, i64 1)
  %block = call ptr @free(ptr %kept)
  %full = icmp eq ptr %block, null
  br i1 %full, label %fresh.make, label %fresh.upon
fresh.upon:
  %kept.dtype = call ptr @PyTuple_GetItem(ptr %means, i64 0)
  %align.at = getelementptr i64, ptr %pf, i64 3
  %align = load i64, ptr %align.at
  call void @Py_IncRef(ptr %block)
  %upon = call ptr @upon(ptr %kept.dtype, i64 %f.rank, ptr %f.dims, ptr %block, i64 %align)
  %upon.lost = icmp eq ptr %upon, null
  br i1 %upon.lost, label %sorry, label %fresh.made
fresh.made:
  %as.it.is = icmp eq i64 %f.how, 4
  br i1 %as.it.is, label %fresh.data, label %fresh.wrap
fresh.wrap:
  %wrapper = call ptr @PyTuple_GetItem(ptr %means, i64 3)
  store ptr %upon, ptr %argument
  %wrapped = call ptr @PyObject_VectorcallDict(ptr %wrapper, ptr %argument, i64 1, ptr null)
  %wrap.data.at = getelementptr %array, ptr %upon, i64 0, i32 2
  %wrap.data = load i64, ptr %wrap.data.at
  call void @Py_DecRef(ptr %upon)
  %wrapped.lost = icmp eq ptr %wrapped, null
  br i1 %wrapped.lost, label %sorry, label %fresh.put
fresh.make:
  %maker = call ptr @PyTuple_GetItem(ptr %means, i64 2)
  br label %fresh.call
fresh.data:
  %array.new = phi ptr [ %array, %fresh.numpy ], [ %upon, %fresh.made ]
  %data.at = getelementptr %array, ptr %array.new, i64 0, i32 2
  %data = load i64, ptr %data.at
  br label %fresh.put
fresh.call:
  %means.call = phi ptr [ %means, %fresh.one ], [ %maker, %fresh.make ]
  %pair.call = call ptr @PyObject_VectorcallDict(ptr %means.call, ptr null, i64 0, ptr null)
  %pair.lost = icmp eq ptr %pair.call, null
  br i1 %pair.lost, label %sorry, label %fresh.pair
fresh.sized:
  %pair.sized = call ptr @shaped(ptr %means, i64 %f.rank, ptr %f.dims, ptr null)
  %sized.lost = icmp eq ptr %pair.sized, null
  br i1 %sized.lost, label %sorry, label %fresh.pair
fresh.pair:
  %pair = phi ptr [ %pair.call, %fresh.call ], [ %pair.sized, %fresh.sized ]
  %first = call ptr @PyTuple_GetItem(ptr %pair, i64 0)
  %place = call ptr @PyTuple_GetItem(ptr %pair, i64 1)
  %place.address = call ptr @PyLong_AsVoidPtr(ptr %place)
  %place.word = ptrtoint ptr %place.address to i64
  call void @Py_IncRef(ptr %first)
  call void @Py_DecRef(ptr %pair)
  br label %fresh.put
fresh.torch:
  %cell = getelementptr [PLACES x ptr], ptr %made, i64 0, i64 %f
  store ptr %means, ptr %cell
  %like = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 21)
  %like.one = call ptr @PyObject_VectorcallDict(ptr %like, ptr %cell, i64 1, ptr null)
  %similar.lost = icmp eq ptr %like.one, null
  br i1 %similar.lost, label %sorry, label %fresh.tensor
fresh.shaped:
  %torch.empty = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 22)
  %shaped = call ptr @shaped(ptr %torch.empty, i64 %f.rank, ptr %f.dims, ptr %means)
  %shaped.lost = icmp eq ptr %shaped, null
  br i1 %shaped.lost, label %sorry, label %fresh.tensor
fresh.tensor:
  %similar = phi ptr [ %like.one, %fresh.torch ], [ %shaped, %fresh.shaped ]
  %f.type.at = getelementptr %object, ptr %similar, i64 0, i32 1
  %f.type = load ptr, ptr %f.type.at
  %torch = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 14)
  %is.tensor = icmp eq ptr %f.type, %torch
  br i1 %is.tensor, label %fresh.ask, label %fresh.strange
fresh.ask:
  %from = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 16)
  %unknown = call i32 %from(ptr %similar, ptr %t)
  %known = icmp eq i32 %unknown, 0
  %t.data = load i64, ptr %t
  %t.offset.at = getelementptr %tensor, ptr %t, i64 0, i32 7
  %t.offset = load i64, ptr %t.offset.at
  %t.address = add i64 %t.data, %t.offset
  br i1 %known, label %fresh.put, label %fresh.strange
fresh.strange:
  call void @Py_DecRef(ptr %similar)
  br label %sorry
fresh.put:
  %new = phi ptr [ %array.new, %fresh.data ], [ %first, %fresh.pair ], [ %wrapped, %fresh.wrap ], [ %similar, %fresh.ask ]
  %new.address = phi i64 [ %data, %fresh.data ], [ %place.word, %fresh.pair ], [ %wrap.data, %fresh.wrap ], [ %t.address, %fresh.ask ]
  %new.at = getelementptr [PLACES x ptr], ptr %made, i64 0, i64 %f
  store ptr %new, ptr %new.at
  %f.slot = load i64, ptr %pf
  %f.to = getelementptr i64, ptr %row, i64 %f.slot
  store i64 %new.address, ptr %f.to
  %f1 = add i64 %f, 1
  br label %fresh.head

work:
  %needs = icmp ne i64 %works, 0
  br i1 %needs, label %work.where, label %call
work.where:
  %on.stack = icmp ule i64 %memory, STACK
  br i1 %on.stack, label %work.stack, label %work.arena
work.stack:
  %stack = alloca i8, i64 %memory, align 64
  %stack.word = ptrtoint ptr %stack to i64
  br label %work.fill
work.arena:
  %take = call ptr @PyTuple_GetItem(ptr %record, i64 %arena)
  %wanted = call ptr @PyLong_FromLongLong(i64 %memory)
  %wanted.lost = icmp eq ptr %wanted, null
  br i1 %wanted.lost, label %sorry, label %work.ask
work.ask:
  store ptr %wanted, ptr %argument
  %taken = call ptr @PyObject_VectorcallDict(ptr %take, ptr %argument, i64 1, ptr null)
  call void @Py_DecRef(ptr %wanted)
  %taken.lost = icmp eq ptr %taken, null
  br i1 %taken.lost, label %sorry, label %work.taken
work.taken:
  %taken.address = call ptr @PyLong_AsVoidPtr(ptr %taken)
  %taken.word = ptrtoint ptr %taken.address to i64
  call void @Py_DecRef(ptr %taken)
  br label %work.fill
work.fill:
  %start = phi i64 [ %stack.word, %work.stack ], [ %taken.word, %work.taken ]
  br label %work.head
work.head:
  %b = phi i64 [ 0, %work.fill ], [ %b1, %work.one ]
  %pb = phi ptr [ %pf, %work.fill ], [ %pb1, %work.one ]
  %b.more = icmp slt i64 %b, %works
  br i1 %b.more, label %work.one, label %call
work.one:
  %b.slot = load i64, ptr %pb
  %b.distance.at = getelementptr i64, ptr %pb, i64 1
  %b.distance = load i64, ptr %b.distance.at
  %b.address = add i64 %start, %b.distance
  %b.to = getelementptr i64, ptr %row, i64 %b.slot
  store i64 %b.address, ptr %b.to
  %b1 = add i64 %b, 1
  %pb1 = getelementptr i64, ptr %pb, i64 2
  br label %work.head

call:
  %pr = phi ptr [ %pf, %work ], [ %pb, %work.head ]
  %alone = icmp eq i64 %long, 0
  br i1 %alone, label %call.short, label %call.long
call.short:
  %status.short = call i64 %kernel(ptr %row)
  br label %called
call.long:
  %state = call ptr @PyEval_SaveThread()
  %status.long = call i64 %kernel(ptr %row)
  call void @PyEval_RestoreThread(ptr %state)
  br label %called
called:
  %status = phi i64 [ %status.short, %call.short ], [ %status.long, %call.long ]
  %right = icmp eq i64 %status, 0
  br i1 %right, label %give, label %drop

give:
  %one = icmp eq i64 %results, 1
  br i1 %one, label %give.one, label %give.many
give.one:
  %single = call ptr @result(ptr %pr, ptr %made, ptr %values)
  br label %release
give.many:
  %tuple = call ptr @PyTuple_New(i64 %results)
  %tuple.lost = icmp eq ptr %tuple, null
  br i1 %tuple.lost, label %sorry, label %give.head
give.head:
  %r = phi i64 [ 0, %give.many ], [ %r1, %give.next ]
  %r.more = icmp slt i64 %r, %results
  br i1 %r.more, label %give.next, label %release
give.next:
  %r.at = getelementptr i64, ptr %pr, i64 %r
  %r.object = call ptr @result(ptr %r.at, ptr %made, ptr %values)
  %set = call i32 @PyTuple_SetItem(ptr %tuple, i64 %r, ptr %r.object)
  %r1 = add i64 %r, 1
  br label %give.head

sorry:
  %so.far = phi i64 [ %f, %fresh.numpy ], [ %f, %fresh.upon ], [ %f, %fresh.wrap ], [ %f, %fresh.call ], [ %f, %fresh.sized ], [ %f, %fresh.torch ], [ %f, %fresh.strange ],
                    [ %f, %fresh.shaped ], [ %f, %work.arena ], [ %f, %work.ask ], [ %f, %give.many ]
  call void @PyErr_Clear()
  br label %drop
drop:
  %dropped = phi i64 [ %so.far, %sorry ], [ %f, %called ]
  br label %release
release: ; the results have references of their own by now
  %answer = phi ptr [ %single, %give.one ], [ %tuple, %give.head ], [ null, %drop ]
  %count = phi i64 [ %f, %give.one ], [ %f, %give.head ], [ %dropped, %drop ]
  br label %release.head
release.head:
  %g = phi i64 [ 0, %release ], [ %g1, %release.one ]
  %g.more = icmp slt i64 %g, %count
  br i1 %g.more, label %release.one, label %end
release.one:
  %g.at = getelementptr [PLACES x ptr], ptr %made, i64 0, i64 %g
  %g.object = load ptr, ptr %g.at
  call void @Py_DecRef(ptr %g.object)
  %g1 = add i64 %g, 1
  br label %release.head
end:
  ret ptr %answer
no:
  ret ptr null
}

; A new reference to the result that %word says.
define internal ptr @result(ptr %word, ptr %made, ptr %values) {
entry:
  %which = load i64, ptr %word
  %new = icmp sge i64 %which, 0
  %place = xor i64 %which, -1
  %index = select i1 %new, i64 %which, i64 %place
  %from = select i1 %new, ptr %made, ptr %values
  %at = getelementptr ptr, ptr %from, i64 %index
  %object = load ptr, ptr %at
  call void @Py_IncRef(ptr %object)
  ret ptr %object
}

; Puts %value into a slot; whether it fits. How, at %words + 2: 0 f64 of a float, 1 f32 of a float, 2 f64 of an integer,
; 3 f32 of an integer, 4 an integer from least to greatest, 5 a truth value.
define internal i1 @number(ptr %value, ptr %words, ptr %slot) {
entry:
  %over = alloca i32
  %how.at = getelementptr i64, ptr %words, i64 2
  %how = load i64, ptr %how.at
  switch i64 %how, label %no [ i64 0, label %float
                               i64 1, label %float
                               i64 2, label %integer
                               i64 3, label %integer
                               i64 4, label %integer
                               i64 5, label %truth ]
float:
  %d = call double @PyFloat_AsDouble(ptr %value)
  %suspect = fcmp oeq double %d, -1.0
  br i1 %suspect, label %float.check, label %float.fine
float.check:
  %error = call ptr @PyErr_Occurred()
  %none = icmp eq ptr %error, null
  br i1 %none, label %float.fine, label %failed
float.fine:
  br label %real
integer:
  %i = call i64 @PyLong_AsLongLongAndOverflow(ptr %value, ptr %over)
  %lost = load i32, ptr %over
  %whole = icmp eq i32 %lost, 0
  br i1 %whole, label %integer.fits, label %no
integer.fits:
  %odd = icmp eq i64 %i, -1
  br i1 %odd, label %integer.check, label %integer.fine
integer.check:
  %raised = call ptr @PyErr_Occurred()
  %quiet = icmp eq ptr %raised, null
  br i1 %quiet, label %integer.fine, label %failed
integer.fine:
  %least.at = getelementptr i64, ptr %words, i64 3
  %least = load i64, ptr %least.at
  %greatest.at = getelementptr i64, ptr %words, i64 4
  %greatest = load i64, ptr %greatest.at
  %above = icmp sge i64 %i, %least
  %below = icmp sle i64 %i, %greatest
  %between = and i1 %above, %below
  br i1 %between, label %integer.in, label %no
integer.in:
  %stays = icmp eq i64 %how, 4
  br i1 %stays, label %store, label %convert
convert: ; the bounds are those of the integers that a double holds
  %exact = sitofp i64 %i to double
  br label %real
real:
  %x = phi double [ %d, %float.fine ], [ %exact, %convert ]
  %single = and i64 %how, 1
  %narrow = icmp ne i64 %single, 0
  br i1 %narrow, label %round, label %wide
round:
  %y = fptrunc double %x to float
  %size = call float @llvm.fabs.f32(float %y)
  %infinite = fcmp oeq float %size, 0x7FF0000000000000
  %size.before = call double @llvm.fabs.f64(double %x)
  %finite.before = fcmp olt double %size.before, 0x7FF0000000000000
  %overflows = and i1 %infinite, %finite.before
  %bits = bitcast float %y to i32
  %bits.word = zext i32 %bits to i64
  br i1 %overflows, label %no, label %store
wide:
  %word = bitcast double %x to i64
  br label %store
truth:
  %is = call i32 @PyObject_IsTrue(ptr %value)
  %is.word = zext i32 %is to i64
  %fine = icmp sge i32 %is, 0
  br i1 %fine, label %store, label %failed
store:
  %put = phi i64 [ %i, %integer.in ], [ %bits.word, %round ], [ %word, %wide ], [ %is.word, %truth ]
  store i64 %put, ptr %slot
  ret i1 true
failed:
  call void @PyErr_Clear()
  br label %no
no:
  ret i1 false
}

; A new NumPy array that begins at a multiple of 64, on top of one of %bytes bytes; or null, and an error is set.
define internal ptr @empty(ptr %dtype, i64 %rank, ptr %extents, ptr %bytes) {
entry:
  %ndarray = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 0)
  %make = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 1)
  %byte = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 3)
  call void @Py_IncRef(ptr %byte)
  %raw = call ptr %make(ptr %ndarray, ptr %byte, i32 1, ptr %bytes, ptr null, ptr null, i32 0, ptr null)
  %lost = icmp eq ptr %raw, null
  br i1 %lost, label %no, label %found
found:
  %array = call ptr @upon(ptr %dtype, i64 %rank, ptr %extents, ptr %raw, i64 64)
  ret ptr %array
no:
  ret ptr null
}

; A new NumPy array that begins at the first multiple of %align in the memory of %raw, a reference to which it takes; or null, and
; an error is set.
define internal ptr @upon(ptr %dtype, i64 %rank, ptr %extents, ptr %raw, i64 %align) {
entry:
  %ndarray = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 0)
  %make = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 1)
  %base = load ptr, ptr getelementptr (%context, ptr @polyop_entry, i32 0, i32 2)
  %data.at = getelementptr %array, ptr %raw, i64 0, i32 2
  %data = load i64, ptr %data.at
  %before = sub i64 %align, 1
  %over = add i64 %data, %before
  %mask = sub i64 0, %align
  %start = and i64 %over, %mask
  %start.at = inttoptr i64 %start to ptr
  %nd = trunc i64 %rank to i32
  call void @Py_IncRef(ptr %dtype)
  %array = call ptr %make(ptr %ndarray, ptr %dtype, i32 %nd, ptr %extents, ptr null, ptr %start.at, i32 1281, ptr null) ; NPY_ARRAY_CARRAY
  %array.lost = icmp eq ptr %array, null
  br i1 %array.lost, label %drop, label %own
own:
  %failed = call i32 %base(ptr %array, ptr %raw) ; takes the reference
  %owned = icmp eq i32 %failed, 0
  br i1 %owned, label %done, label %undo
undo:
  call void @Py_DecRef(ptr %array)
  ret ptr null
drop:
  call void @Py_DecRef(ptr %raw)
  ret ptr null
done:
  ret ptr %array
}

; The last of at most TRIES blocks at the end of %list that nothing but the list refers to, borrowed; or null.
define internal ptr @free(ptr %list) {
entry:
  %size = call i64 @PyList_Size(ptr %list)
  %short = sub i64 %size, TRIES
  %stop = call i64 @llvm.smax.i64(i64 %short, i64 0)
  br label %head
head:
  %k = phi i64 [ %size, %entry ], [ %at, %one ]
  %more = icmp sgt i64 %k, %stop
  br i1 %more, label %one, label %none
one:
  %at = sub i64 %k, 1
  %block = call ptr @PyList_GetItem(ptr %list, i64 %at)
  %count = load i32, ptr %block ; from 3.12 on the upper half says other things
  %alone = icmp eq i32 %count, 1
  br i1 %alone, label %found, label %head
found:
  ret ptr %block
none:
  ret ptr null
}

; What %call makes of a tuple of extents and %keywords (or null, for none); or null, and an error is set.
define internal ptr @shaped(ptr %call, i64 %rank, ptr %extents, ptr %keywords) {
entry:
  %cell = alloca ptr
  %shape = call ptr @PyTuple_New(i64 %rank)
  %lost = icmp eq ptr %shape, null
  br i1 %lost, label %no, label %head
head:
  %d = phi i64 [ 0, %entry ], [ %d1, %put ]
  %more = icmp slt i64 %d, %rank
  br i1 %more, label %one, label %make
one:
  %from = getelementptr i64, ptr %extents, i64 %d
  %extent = load i64, ptr %from
  %number = call ptr @PyLong_FromLongLong(i64 %extent)
  %number.lost = icmp eq ptr %number, null
  br i1 %number.lost, label %drop, label %put
put:
  %failed = call i32 @PyTuple_SetItem(ptr %shape, i64 %d, ptr %number)
  %d1 = add i64 %d, 1
  br label %head
make:
  store ptr %shape, ptr %cell
  %made = call ptr @PyObject_VectorcallDict(ptr %call, ptr %cell, i64 1, ptr %keywords)
  call void @Py_DecRef(ptr %shape)
  ret ptr %made
drop:
  call void @Py_DecRef(ptr %shape)
  ret ptr null
no:
  ret ptr null
}
