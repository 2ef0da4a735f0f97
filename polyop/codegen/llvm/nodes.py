"""Loops and tests. A serial loop is a loop; rows and lanes are no loops at all, but axes along which stores repeat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from polyop.codegen.cpu.facts import is_positive, runs_once
from polyop.codegen.cpu.pieces import is_in_pieces, is_in_turn
from polyop.codegen.cpu.prefetch_rows import NARROW
from polyop.codegen.cpu.runs import is_run
from polyop.codegen.llvm.addresses import Place, locate
from polyop.codegen.llvm.builder import Code
from polyop.codegen.llvm.dots import close_offsets, open_offsets
from polyop.codegen.llvm.emitters import Emitters
from polyop.codegen.llvm.expressions import computed_positions, negation, test_value, value_of
from polyop.codegen.llvm.index import index, test_scalar
from polyop.codegen.llvm.parallel import inner_part, parallel_loop, part_of, shares_registers
from polyop.codegen.llvm.pieces import pieces_of
from polyop.codegen.llvm.pointers import gep, has_bytes
from polyop.codegen.llvm.reach import bypasses
from polyop.codegen.llvm.registers import register_type
from polyop.codegen.llvm.repeat import points
from polyop.codegen.llvm.rounds import go_round, several_at_once
from polyop.codegen.llvm.runs import emit_as_one, emit_run, follows_itself
from polyop.codegen.llvm.state import Axis, Condition, RegKey, State, Sums
from polyop.codegen.llvm.steady import compute_ahead, forgotten_behind
from polyop.codegen.llvm.stores import store, store_together
from polyop.codegen.llvm.sums import carried, merged, put, settle, start_at_zero, taken
from polyop.codegen.llvm.tiles import emit_tiles
from polyop.codegen.llvm.types import Int, alignment
from polyop.codegen.llvm.windows import arranged, is_window, write_out
from polyop.codegen.llvm.woven import by_turns, takes_turns
from polyop.ir.errors import UnsupportedError, assert_never
from polyop.ir.expr import bounds, names
from polyop.ir.loops import Barrier, For, If, IfData, Kind, Node, Prefetch, Space, Store, has_loop, stores, walk
from polyop.ir.target import LINE

AT_ONCE = 4
"""Iterations of a wide tile's loop that stand in the text one after the other. To count and to find addresses takes 4 of 25
instructions for 12 multiply-adds, which counts where another thread has half of the core.
"""

MANY = 64
"""Iterations that a loop must be known to have been cut to: of fewer, too many would be left."""


def emit_nodes(s: State, body: tuple[Node, ...]) -> None:
    keep, certain = s.lives, s.certain
    s.lives = s.lives.inside(body)
    if s.lanes is not None and not s.active:
        s.certain = (*certain, body)
    trips = s.trips
    for together in by_turns(s, body):
        n = together[0]
        s.trips = trips if n is body[-1] else None  # what stands before a loop that is counted with others is done in full
        match n:
            case For(kind=Kind.ROWS | Kind.LANES):
                _axis(s, n)
            case For(kind=Kind.PARALLEL) if s.shared.threads and not s.outlined and not s.axes and not shares_registers(s, n):
                parallel_loop(s, n, BY)
            case For(kind=Kind.SERIAL) if s.trips is not None:
                _plain_loop(s, n, index(s, n.lower, {}), index(s, n.upper, {}))
            case For() if s.trips is not None:
                part_of(s, n, inner_part(s, s.trips), BY)
            case For():
                _refuse_lockstep(s, n)
                _serial(s, n)
            case If():
                _if(s, n)
            case IfData():
                test = value_of(s, n.test).at({}, 0)
                # nothing may have been written to its registers where the loop in it does not run
                branch(s, s.b.do(f"freeze i1 {test}"), partial(emit_nodes, s, n.then), partial(emit_nodes, s, n.other))
            case Store() if len(together) > 1:
                settle(s, together)
                store_together(s, stores(together))
            case Store():
                settle(s, (n,))
                store(s, n)
            case Prefetch():
                _prefetch(s, n)
            case Barrier():
                raise UnsupportedError("threads of a CPU have no barriers")
            case _:
                assert_never(n)
    s.lives, s.certain = keep, certain


def _refuse_lockstep(s: State, n: For) -> None:
    used = (names(n.lower) | names(n.upper)) & s.axes.keys()
    if used:
        raise UnsupportedError(f"the bounds of {n.index} depend on {', '.join(sorted(used))}, which run in lock step")


def _axis(s: State, n: For) -> None:
    """Open a lock-step loop; without any iteration nothing inside happens."""
    _refuse_lockstep(s, n)
    if n.kind == Kind.LANES and s.lanes is not None:
        raise UnsupportedError(f"lanes {n.index} inside lanes {s.lanes.index}")
    emit = partial(_piece, s, n, 0) if not s.axes and is_in_pieces(n, s.width) else partial(_inside, s, n, None)
    if not s.axes and s.shared.target.registers <= 16 and is_in_turn(n, s.width):
        for v in range((n.extent or 0) // s.width):
            _inside(s, n, v)
        return
    if n.is_full or is_positive(n.upper, s.loops, s.tests):
        emit()
        return
    keep, s.tests = s.tests, (*s.tests, n.upper - 1)
    branch(s, s.b.compare("sge", index(s, n.upper, {}), 1), emit, lambda: None)
    s.tests = keep


def _inside(s: State, n: For, piece: int | None) -> None:
    """The body of a lock-step loop, for all vectors of its lanes or for one."""
    assert n.extent is not None
    valid = None if n.is_full else index(s, n.upper, {})
    valid = None if isinstance(valid, int) and valid >= n.extent else valid
    keep = s.tile_depth, s.fills
    if not s.axes:
        s.tile_depth = len(s.b.zones) - 1
        s.fills = not s.shared.target.masks and any(isinstance(x, For) and x.kind == Kind.SERIAL for x in walk(n.body))
    s.open_axis(Axis(n.index, n.kind, n.extent, valid, n.upper, piece))
    emit_nodes(s, n.body)
    s.close_axis(n.index)
    s.tile_depth, s.fills = keep
    if s.lanes is None:
        s.sums = {}


def _piece(s: State, n: For, v: int) -> None:
    """Vector `v` of the lanes `n`, and the next ones if they have lanes."""
    assert n.extent is not None
    _inside(s, n, v)
    end = (v + 1) * s.width
    if end < n.extent:
        branch(s, s.b.compare("sgt", index(s, n.upper, {}), end), _arm(s, partial(_piece, s, n, v + 1)), lambda: None)


def branch(s: State, test: str, then: Callable[[], None], other: Callable[[], None]) -> None:
    """`then` or `other`; registers written in either are merged."""
    yes, no, done = s.b.new_label(), s.b.new_label(), s.b.new_label()
    s.b.line(f"br i1 {test}, label %{yes}, label %{no}")
    before, sums = dict(s.regs), dict(s.sums)
    ends: list[tuple[str, dict[RegKey, str]]] = []
    tiles: list[tuple[str, dict[str, Sums], Code]] = []
    for name, body in ((yes, then), (no, other)):
        s.regs, s.sums = dict(before), dict(sums)
        s.label(name)
        body()
        ends.append((s.b.block, s.regs))
        tiles.append((s.b.block, s.sums, []))
        s.b.code.append(tiles[-1][2])
        s.b.line(f"br label %{done}")
    s.label(done)
    s.sums = merged(s, tiles)
    s.regs = {}
    for key in sorted(ends[0][1].keys() | ends[1][1].keys()):
        values = [regs.get(key, "poison") for _, regs in ends]
        if values[0] == values[1]:
            s.regs[key] = values[0]
        else:
            pairs = ", ".join(f"[ {x}, %{block} ]" for x, (block, _) in zip(values, ends, strict=True))
            s.regs[key] = s.b.do(f"phi {register_type(s, key)} {pairs}")


def _if(s: State, n: If) -> None:
    """A branch; or, if rows or lanes decide differently, a condition on every store inside."""
    used = frozenset().union(*(names(t) for t in n.tests)) & s.axes.keys()
    keep_active, keep_tests = s.active, s.tests
    if used:
        test = test_value(s, n.tests)
        s.active = (*keep_active, Condition(test, True, n.tests))
        emit_nodes(s, n.then)
        s.active = (*keep_active, Condition(negation(s, test), True))
        emit_nodes(s, n.other)
        s.active = keep_active
        return
    total: str | None = None
    for t in n.tests:
        total = s.b.both(total, test_scalar(s, t, {}))
    if total in ("true", "false"):
        emit_nodes(s, n.then if total == "true" else n.other)
        return

    def then() -> None:
        s.tests = (*keep_tests, *n.tests)
        emit_nodes(s, n.then)
        s.tests = keep_tests

    def other() -> None:
        if len(n.tests) == 1 and not s.shared.target.masks:  # how many lanes there are at least
            s.tests = (*keep_tests, n.tests[0] * -1 - 1)
        emit_nodes(s, n.other)
        s.tests = keep_tests

    branch(s, total or "true", _arm(s, then), _arm(s, other, rare=True))


def _arm(s: State, body: Callable[[], None], rare: bool = False) -> Callable[[], None]:
    """`body` with what it alone needs computed in it; not inside tiles, where both ways share rows and lanes.

    rare   whether it is the way of edges: full tiles are asked for first
    """
    def alone() -> None:
        masks = s.masks
        s.masks = dict(masks)
        with s.b.arm(rare):
            body()
        s.masks = masks

    return body if s.axes or len(s.b.zones) == 1 else alone


def _serial(s: State, n: For) -> None:
    """A loop; or none, where there is one iteration at most.

    What depends on nothing but the index of that one is then computed outside the loops around: worth while where nothing
    else than sums of short rows goes on inside.
    """
    if s.axes and is_window(s, n):
        write_out(s, n)
        return
    if s.axes and (other := arranged(s, n)) is not n:
        emit_nodes(s, (other,))
        return
    if takes_turns(s, n):
        for at in range(n.lower.const, n.upper.const, n.step):
            _iteration(s, n, at)
        return
    lower, upper = index(s, n.lower, {}), index(s, n.upper, {})
    if isinstance(lower, int) and isinstance(upper, int) and 0 < upper - lower <= n.step and _only_writes(s, n):
        _iteration(s, n, lower)  # how many lanes there are is a number then
        return
    if not s.axes and runs_once(n) and all(s.nest.buffer(x.target.source).space == Space.REG for x in stores(n.body)):
        branch(s, s.b.compare("slt", lower, upper), lambda: _iteration(s, n, lower), lambda: None)
        return
    _loop(s, n, lower, upper)


def _only_writes(s: State, n: For) -> bool:
    """Whether `n` is an innermost loop that adds nothing up, and leaves nothing in registers."""
    found = stores(n.body)
    return not has_loop(n.body) and all(x.reduce is None and s.nest.buffer(x.target.source).space != Space.REG for x in found)


def _iteration(s: State, n: For, at: Int) -> None:
    """The body of `n` for one value of its index."""
    keep = s.env, s.loops
    s.env, s.loops = {**s.env, n.index: at}, (*s.loops, n)
    emit_nodes(s, n.body)
    s.env, s.loops = keep


def _loop(s: State, n: For, lower: Int, upper: Int) -> None:
    """`for index in [lower, upper)`; registers that it writes and that exist before are carried round."""
    if not s.axes and is_run(s.nest, n):
        emit_run(s, n, lower, upper, BY)
        return
    if s.fills and (rows := _maybe_none(s, n)):
        rest = replace(n, body=tuple(x for x in n.body if x is not rows))
        keep, some = s.tests, (*s.tests, *(b - 1 for b in bounds(rows.upper)))

        def there() -> None:
            s.tests = some
            _loop(s, n, lower, upper)
            s.tests = keep

        branch(s, s.b.compare("sge", index(s, rows.upper, {}), 1), there,
               lambda: _loop(s, rest, lower, upper) if rest.body else None)
        return
    together = follows_itself(s, n, lower, upper)
    if together is None:
        _plain_loop(s, n, lower, upper)
    else:
        branch(s, together, lambda: emit_as_one(s, n, lower, upper, BY), lambda: _plain_loop(s, n, lower, upper))


def _maybe_none(s: State, n: For) -> For | None:
    """Rows inside of `n` of which there may be none, all through it: if that is asked in each step, sums are moved about."""
    rows = (x for x in n.body if isinstance(x, For) and x.kind == Kind.ROWS and not x.is_full)
    found = (x for x in rows if n.index not in names(x.upper))
    return next((x for x in found if not is_positive(x.upper, (*s.loops, n), s.tests)), None)


def _plain_loop(s: State, n: For, lower: Int, upper: Int) -> None:
    if start_at_zero(s, n) or emit_tiles(s, n, lower, upper, branch):
        return
    written, tiled = {x.target.source for x in stores(n.body)}, carried(s, n)
    offsets = open_offsets(s, n)
    if not tiled:
        settle(s, n.body)
    entering, sums = dict(s.regs), {name: taken(s, name) for name in tiled}
    keys = sorted(k for k in entering if k[0] in written)

    def iteration(at: Int, given: list[str]) -> list[str]:
        s.regs = {**entering, **dict(zip(keys, given[:len(keys)], strict=True))}
        split(given[len(keys):])
        _iteration(s, n, at)
        return [*(s.regs[k] for k in keys), *(x for name in tiled for x in taken(s, name))]

    def split(tiles: list[str]) -> None:
        for name, start in sums.items():
            put(s, name, tiles[:len(start)])
            tiles = tiles[len(start):]

    start = [*((register_type(s, k), entering[k]) for k in keys), *(("x86_amx", x) for of in sums.values() for x in of)]
    with forgotten_behind(s):
        copies = any(s.nest.buffer(name).space == Space.WORK for name in written)
        if _is_whole_tile(s, n):
            ends = several_at_once(s, lower, upper, n.step, start, iteration, AT_ONCE)
        else:
            ends = go_round(s, lower, upper, n.step, start, iteration, copies=copies, ahead=partial(compute_ahead, s, n))
    s.regs = {**entering, **dict(zip(keys, ends[:len(keys)], strict=True))}
    split(ends[len(keys):])
    close_offsets(s, offsets)


def _is_whole_tile(s: State, n: For) -> bool:
    """Whether all that `n` does is to add up a wide tile whose rows and lanes all exist, in many steps, with hints on the way.

    A narrow one finds the next rows on its way (`prefetch_rows.py`), which is most of what it does beside its sums.
    """
    if s.lanes is None or s.lanes.extent <= NARROW * s.width or any(a.valid is not None for a in s.axes.values()):
        return False
    if s.shared.target.registers > 16:
        return False  # to count takes 1 of 43 instructions there, and LLVM may load for all steps at once, and sums go to memory
    is_long = any(x.is_constant and x.const >= MANY * n.step for x in bounds(n.upper - n.lower))
    rows = [x for x in n.body if isinstance(x, For) and all(y.kind == Kind.ROWS and y.is_full for y in _loops(x))]
    hints = [x for x in n.body if isinstance(x, Prefetch)]
    in_registers = all(s.nest.buffer(x.target.source).space == Space.REG for x in stores(n.body))
    return is_long and bool(rows) and len(rows) + len(hints) == len(n.body) and in_registers


def _loops(n: For) -> tuple[For, ...]:
    """`n` and the loops inside."""
    return tuple(x for x in walk((n,)) if isinstance(x, For))


BY = Emitters(_loop, _plain_loop, branch)


def _prefetch(s: State, n: Prefetch) -> None:
    """The hints of `n`; of a buffer of fewer bytes than they pay for, such as cost next to nothing, or none."""
    place = locate(s, n.place, computed_positions(s, n.place, ()))
    if not n.least:
        _hints(s, n, place, 0)
        return
    some = has_bytes(s, place.buffer, n.least)
    if n.ahead is None:
        branch(s, some, _arm(s, partial(_hints, s, n, place, 0)), lambda: None)
        return
    back = index(s, n.ahead * -1, {})
    _hints(s, n, place, s.b.pure(f"select i1 {some}, i64 0, i64 {back}", some, back))


def _hints(s: State, n: Prefetch, place: Place, back: Int) -> None:
    """One hint for each vector, or each line if that is `once`, or each copy of the rows; `back` elements from the place."""
    lanes = s.pieces() if place.stride == 1 or place.runs else range(1)
    bytes_ = alignment(place.element)
    line = LINE if n.once and s.shared.target.vector_bytes < LINE else bytes_
    firsts = [v * s.width for v in lanes if v * s.width * bytes_ % line < s.width * bytes_]
    for point in points(s, place.rows):
        for at in [x.at for v in lanes for x in pieces_of(s, place.runs, v)] if place.runs else firsts:
            p = gep(s, place.element, gep(s, place.element, place.base(point, None), back), at)
            if n.written:  # what bypasses the caches must not be fetched into them: the arguments are there anyway
                p = s.b.do(f"select i1 {bypasses(s, place)}, ptr {s.args}, ptr {p}")
            s.b.call("void", "llvm.prefetch.p0", ("ptr", p), ("i32", 0), ("i32", 4 - n.cache), ("i32", 1))


