"""A run (`codegen/cpu/runs.py`) in whole vectors, wherever it begins and however long it is.

Fewer elements than a vector are one masked vector. What does not fill the last vector is written by one that reaches back, over
elements that have their values already; of a few vectors half of them are counted from the end. Where the tensor is large and
rows are long, or whole vectors at aligned addresses, they bypass the caches, but for what lies beside them. Runs that follow each
other in memory are one.

No nest says any of this: the best cut follows from addresses and strides, which a nest does not have, and an element that it
assigns it assigns once. So this relies on what is asked of a run there, and on nothing else that is known of the loop.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.codegen.cpu.prefetch import further_on
from polyop.codegen.cpu.runs import repeated, run_of
from polyop.codegen.llvm.addresses import locate, run_along
from polyop.codegen.llvm.emitters import Emitters
from polyop.codegen.llvm.expressions import computed_positions
from polyop.codegen.llvm.index import index
from polyop.codegen.llvm.pointers import FAR, is_large
from polyop.codegen.llvm.state import Axis, State
from polyop.codegen.llvm.steady import compute_ahead, forgotten_behind
from polyop.codegen.llvm.stores import store
from polyop.codegen.llvm.types import Int, alignment, memory
from polyop.ir.expr import Load, affine, loads
from polyop.ir.loops import For, Kind, Store
from polyop.ir.scalars import computes
from polyop.ir.target import LINE, PAGE

FETCHED = 1024
"""Bytes between what is read and what is prefetched, for functions whose results bypass the caches: a quarter of the shortest
row that does, so that no more is fetched in vain behind its end. With 512 bytes, 2 and 4 KB it is as fast; sums gain nothing.
"""
FEW = 4
"""Vectors of a row whose cut is not worth a question about addresses, unless all of them are whole: copies of rows of 17 to 63
numbers take 0.55 to 0.7 of their time."""
SPLIT = 16
"""Vectors of a row from which on one more, at its beginning, costs less than that each of them is written to two lines."""

COPY = ('call {{ ptr, ptr, i64 }} asm sideeffect "rep movsb", '
        '"={{di}},={{si}},={{cx}},0,1,2,~{{memory}},~{{dirflag}},~{{fpsr}},~{{flags}}"(ptr {to}, ptr {from_}, i64 {bytes_})')
"""It reads nothing that it will overwrite: where a row is copied out of L2, it is 1.5 times as fast as vectors. Twice as much as
what bypasses the caches otherwise it takes as fast as those stores.

On Zen 5 it is no faster where it writes less than a line behind what it reads, as far as the last twelve bits of addresses tell.
"""

def nothing() -> None:
    """The other branch of a test without one."""


def emit_run(s: State, n: For, lower: Int, upper: Int, by: Emitters) -> None:
    """Carry out the run `n` from `lower` up to `upper`."""
    b, w, step = s.b, s.width, n.step
    lanes, stream = run_of(n)
    if n.kind == Kind.PARALLEL:  # of a part of it, whole steps are asked for
        upper = b.extreme("min", upper, index(s, n.upper, {}))
    plain = replace(stream, stream=False)
    # its vectors begin anywhere, and several runs are one: nothing follows from the bounds that `n` has
    row = replace(n, lower=affine(f"{n.index}.begin"), upper=affine(f"{n.index}.end"))

    def one(at: Int, valid: Int | None = None) -> None:
        """A vector from `at` on, or that many elements of it."""
        _vector(s, n, plain, at, valid)

    def vectors(begin: Int, what: Store) -> Int:
        """As many whole vectors as there are from `begin` on; where they end."""
        left = b.sub(upper, begin)
        # of a vector of many instructions no processor sees the loads of the next lines early enough
        fetched = further_on(s.nest, replace(lanes, body=(what,)), FETCHED) if what.stream and computes(what.expr) else ()

        def loop(extent: int, first: Int) -> None:
            body = replace(lanes, extent=extent, upper=affine(extent), body=(*fetched, what))
            by.plain(s, replace(row, step=extent, body=(body,)), first, b.sub(upper, extent - 1))

        loop(step, begin)
        if step > w:
            loop(w, b.add(begin, b.mul(b.floor_div(left, step), step)))
        return b.add(begin, b.mul(b.floor_div(left, w), w))

    def with_the_caches(aligned: Int) -> None:
        """Of long rows whole vectors are written to aligned addresses, after one at the beginning."""
        uneven = b.both(b.compare("sgt", aligned, lower), b.compare("sge", b.sub(upper, lower), SPLIT * w)) or ""
        by.branch(s, uneven, lambda: one(lower), nothing)
        end = vectors(b.do(f"select i1 {uneven}, i64 {aligned}, i64 {lower}"), plain)
        by.branch(s, b.compare("slt", end, upper), lambda: one(b.sub(upper, w)), nothing)

    def past_the_caches(begin: Int) -> None:
        """What lies beside the whole aligned vectors is written alone: a line that is written both ways is written twice."""
        by.branch(s, b.compare("sgt", begin, lower), lambda: one(lower, b.sub(begin, lower)), nothing)
        s.past = True
        end = vectors(begin, stream)
        s.past = False
        by.branch(s, b.compare("slt", end, upper), lambda: one(end, b.sub(upper, end)), nothing)

    def in_vectors() -> None:
        begin, count = b.add(lower, _before_aligned(s, n, lower)), b.sub(upper, lower)
        size = alignment(memory(stream.target.dtype))
        uneven = b.do(f"or i64 {b.sub(begin, lower)}, {b.do(f'and i64 {count}, {w - 1}')}")
        even, far = b.compare("eq", uneven, 0), b.compare("sge", count, FAR // size)
        past = b.both(b.do(f"or i1 {even}, {far}"), is_large(s, s.nest.buffer(stream.target.source)))
        assert past is not None
        by.branch(s, past, lambda: past_the_caches(begin), lambda: with_the_caches(begin))

    def long() -> None:
        is_string = _is_string(s, n, lower, upper)
        if is_string is None:
            in_vectors()
        else:
            by.branch(s, is_string, lambda: _string(s, n, lower, upper), in_vectors)

    def some(vectors: int) -> None:
        """Half as many whole vectors from the beginning and from the end, which may overlap: no address is asked about."""
        half = vectors // 2
        for at in (*(b.add(lower, k * w) for k in range(half)), *(b.sub(upper, k * w) for k in range(half, 0, -1))):
            one(at)

    def whole() -> None:
        """At least one vector."""
        if n.kind == Kind.PARALLEL or computes(stream.expr):
            return long()
        count = b.sub(upper, lower)
        brief = b.both(b.compare("sle", count, FEW * w), b.compare("ne", b.do(f"and i64 {count}, {w - 1}"), 0)) or ""
        by.branch(s, brief, lambda: by.branch(s, b.compare("sle", count, 2 * w), lambda: some(2), lambda: some(FEW)), long)

    def short() -> None:
        by.branch(s, b.compare("slt", lower, upper), lambda: one(lower, b.sub(upper, lower)), nothing)

    with forgotten_behind(s):
        compute_ahead(s, n)  # for all parts alike: an element has the same bits in whichever it is
        by.branch(s, b.compare("sge", b.sub(upper, lower), w), whole, short)


def follows_itself(s: State, n: For, lower: Int, upper: Int) -> str | None:
    """Whether what the loop `n` repeats is a run, and each begins where the one before ends; None if it is none.

        for i in [lower, upper) { for t in [a, b) { Y[i, t] = f(X[i, t]) } }      strides along i are (b - a) times those along t
    """
    inner = None if s.axes else repeated(s.nest, n)
    if inner is None:
        return None
    lanes, what = run_of(inner)
    b, total = s.b, s.b.compare("slt", lower, upper)
    count = b.sub(index(s, inner.upper, {}), index(s, inner.lower, {}))
    for x in (what.target, *loads(what.expr)):
        outer, along = run_along(s, x, n.index), run_along(s, x, lanes.index)
        if outer is None or along is None or (outer == 0) != (along == 0):
            return None
        total = b.both(total, b.compare("eq", outer, b.mul(along, count))) or total
    return total


def emit_as_one(s: State, n: For, lower: Int, upper: Int, by: Emitters) -> None:
    """Carry out the loop `n` around a run that follows itself."""
    inner = n.body[0]
    assert isinstance(inner, For)
    b, inner = s.b, replace(inner, kind=Kind.SERIAL)
    begin, end = index(s, inner.lower, {}), index(s, inner.upper, {})
    keep, s.env = s.env, {**s.env, n.index: lower}
    emit_run(s, inner, begin, b.add(begin, b.mul(b.sub(upper, lower), b.sub(end, begin))), by)
    s.env = keep


def _vector(s: State, n: For, what: Store, at: Int, valid: Int | None) -> None:
    """One vector of a run, or its first lanes."""
    lanes, _ = run_of(n)
    keep = s.env, s.tile_depth
    s.env, s.tile_depth = {**s.env, n.index: at}, len(s.b.zones) - 1
    s.open_axis(Axis(lanes.index, Kind.LANES, s.width, valid, affine(s.width)))
    store(s, what)
    s.close_axis(lanes.index)
    s.env, s.tile_depth = keep


def _begins(s: State, n: For, x: Load, lower: Int) -> tuple[str, str | None] | None:
    """Where the first element lies that a run takes from `x`, or writes to it, and whether inside; None if they are apart."""
    lanes, _ = run_of(n)
    s.open_axis(Axis(lanes.index, Kind.LANES, s.width, None, affine(s.width)))
    keep, s.env = s.env, {**s.env, n.index: lower}
    s.loaded = {}  # what a store before has read may have been read on another way to here
    place = locate(s, x, computed_positions(s, x, ()))
    found = None
    if place.stride == 1 and place.offsets is None:
        found = s.b.do(f"ptrtoint ptr {place.base({}, None)} to i64"), place.inside.at({}, 0) if place.inside else None
    s.env = keep
    s.close_axis(lanes.index)
    return found


def _before_aligned(s: State, n: For, lower: Int) -> Int:
    """Elements of the run before the first whose address is that of a whole vector."""
    b, what = s.b, run_of(n)[1]
    bytes_, at = alignment(memory(what.target.dtype)), _begins(s, n, what.target, lower)
    assert at is not None
    return b.floor_div(b.do(f"and i64 {b.do(f'sub i64 0, {at[0]}')}, {s.width * bytes_ - 1}"), bytes_)


def _is_string(s: State, n: For, lower: Int, upper: Int) -> str | None:
    """Whether one string instruction is the best way to carry out the run; None if it is none."""
    b, what, least = s.b, run_of(n)[1], s.shared.target.string_bytes
    if not least or not isinstance(what.expr, Load) or what.expr.dtype != what.target.dtype:
        return None
    to, from_ = (_begins(s, n, x, lower) for x in (what.target, what.expr))
    if to is None or from_ is None:
        return None
    ahead = b.do(f"sub i64 {b.do(f'sub i64 {to[0]}, {from_[0]}')}, 1")
    apart = b.compare("uge", b.do(f"and i64 {ahead}, {PAGE - 1}"), LINE - 1)
    long = b.compare("sge", b.sub(upper, lower), least // alignment(memory(what.target.dtype)))
    small = b.pure(f"xor i1 {is_large(s, s.nest.buffer(what.target.source), 2)}, true")
    return b.both(b.both(b.both(small, long), apart), from_[1])


def _string(s: State, n: For, lower: Int, upper: Int) -> None:
    """Copy the run by a string instruction."""
    b, what = s.b, run_of(n)[1]
    assert isinstance(what.expr, Load)
    found = (_begins(s, n, x, lower) for x in (what.target, what.expr))
    to, from_ = (b.do(f"inttoptr i64 {x[0]} to ptr") for x in found if x)
    b.do(COPY.format(to=to, from_=from_, bytes_=b.mul(b.sub(upper, lower), alignment(memory(what.target.dtype)))))
