"""What one thread does, as C text: loops, tests, barriers and stores in their order."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from polyop.codegen.c import anew, boxes, matrix, roll, rows, threads, units, windows
from polyop.codegen.c import copy as ccopy
from polyop.codegen.c import pairs as cpairs
from polyop.codegen.c import parts as cparts
from polyop.codegen.c import terms as cterms
from polyop.codegen.c import whole as cwhole
from polyop.codegen.c import wide as cwide
from polyop.codegen.c.expr import expression
from polyop.codegen.c.index import bounded, condition, conditions, index
from polyop.codegen.c.scope import Scope
from polyop.codegen.c.store import store
from polyop.codegen.gpu.inside import below
from polyop.ir.errors import InternalError, UnsupportedError, assert_never
from polyop.ir.expr import Affine, Apply, Const, Load, affine, bounds, loads, names
from polyop.ir.expr import Test as Tests
from polyop.ir.expr import walk as walk_expr
from polyop.ir.loops import LOCKSTEP, Barrier, For, If, IfData, Kind, Node, Prefetch, Space, Store, sign, stores, walk
from polyop.ir.scalars import UNARY_FLOAT

_WIDEST, _LARGEST = 110, 100  # columns and sub-expressions of a statement's comment
_UNROLLED, _WRITTEN = 32, 256  # iterations of a loop that is written out, and the statements that come of it
_SUMS = 2048  # the same of sums of deep turns: 32 steps of 8 x 8
_STEPS = 4  # turns of atoms that are all written out
_ATOMS = 34  # statements of more: 16 products of tiles of 16 x 8 and what these read, with which NVRTC takes 5 to 9 % less
_FUNCTION = 3  # statements that an exponential stands for: 32 at once took all registers of a thread on gfx1100, and a minute


def body(nodes: tuple[Node, ...], scope: Scope, turn: str = "") -> list[str]:
    """The lines of a body. Products that it starts go on as long as they may: of a `turn` of a loop, into the next one."""
    out: list[str] = []
    going = frozenset[str]()
    for k, n in enumerate(nodes):
        if going and units.must_wait(n, going):
            out += units.ended(going, scope)
            going = frozenset()
        if k + 1 < len(nodes) and scope.block and units.is_begun(n, nodes[k + 1], scope):
            continue  # what it clears the unit begins with
        out += _node(n, replace(scope, fresh=k > 0 and scope.block > 0 and units.is_begun(nodes[k - 1], n, scope)))
        going |= units.started(n, scope)
    if turn in scope.chains and len(nodes) == 1:
        return out  # each turn of the loop inside has waited as it must, and more of them come
    return out + ([units.PASSED] if turn and units.may_pass(nodes, going, scope) else units.ended(going, scope))


def _indented(nodes: tuple[Node, ...], scope: Scope, turn: str = "") -> list[str]:
    return ["    " + line for line in body(nodes, scope, turn)]


def _node(n: Node, scope: Scope) -> list[str]:
    match n:
        case For(kind=Kind.THREADS):
            inner = replace(scope, block=0, digits=(*scope.digits, *threads.chain(n)[0]))
            lines = threads.nest(n, scope, scope.block, units.lanes(n.body, scope),
                                  lambda inside: units.group(inside, _tile(inside, inner), scope))
            return boxes.copy(n, scope, lines)
        case For(kind=Kind.ROWS | Kind.ATOM) if scope.block == units.lanes((n,), scope) and _writes_memory(n, scope):
            return _tile((n,), replace(scope, block=0))  # loops over warps that run once are gone: all threads have the tile
        case For(kind=Kind.ATOM):
            if scope.block and _writes_memory(n, scope):
                raise UnsupportedError(f"a tile of {units.lanes((n,), scope)} lanes is written by a block of {scope.block}")
            def tile(x: For, mine: Scope) -> list[str]:
                return matrix.tile(x, mine, lambda s, inner: _node(s, inner))

            found = cwhole.elements((n,), scope) if scope.block else None
            if found and isinstance(full := found[1][0], For):
                edge = tile(n, replace(scope, most=roll.EDGE))
                return edge if found[0] in scope.failed else _either(found[0], tile(full, replace(scope, whole=True)), edge)
            return units.group((n,), tile(n, scope), scope) if scope.block else tile(n, scope)
        case For():
            return _loop(n, scope)
        case Barrier():
            return [f"{scope.barrier.format(n.pending)}  // {n.reason}"]
        case If():
            asked = conditions(n.tests, scope.names).c
            then = replace(scope, beside=sum(map(_copies, n.other))) if any(isinstance(x, If) for x in walk(n.other)) else scope
            otherwise = _indented(n.other, replace(scope, failed=scope.failed | {asked}))
            return [f"if ({asked}) {{", *_indented(n.then, then), *(["} else {", *otherwise] if n.other else []), "}"]
        case IfData(test=Apply(fn="isfinite", args=(Load() as x,)), then=()):
            finite = f"pop_all_finite<{scope.tiles.warp}>({matrix.tile_at(x, scope)})"
            return [f"if (!{finite}) {{", *_indented(n.other, replace(scope, most=0)), "}"]
        case IfData(test=Apply(fn="or", args=(Tests(tests=tests), Apply(fn="isfinite", args=(Load() as x,))))):
            terms = _indented(n.other, replace(scope, most=0))
            head = f"if ({conditions(tests, scope.names).at(6)} || {units.is_finite(x, scope)}) {{"
            return [head, *_indented(n.then, scope), "} else {", *terms, "}"]
        case IfData(test=Apply(fn="ne", args=(Load() as x, Const() as c)), other=()) if x.source in scope.tiles.rows:
            some = " || ".join(f"{matrix.tile_at(x, scope)}[{r}] != {expression(c, scope).c}"
                               for r in range(scope.tiles.rows[x.source].fragment.regs))
            return [f"if (pop_some<{scope.tiles.warp}>({some})) {{", *_indented(n.then, scope), "}"]
        case IfData(test=test) if not any(isinstance(x, Load) for x in walk_expr(test)):  # of scalars
            either = ["} else {", *_indented(n.other, scope)]
            return [f"if ({expression(test, scope).c}) {{", *_indented(n.then, scope), *either, "}"]
        case IfData():
            raise InternalError(f"body: `{n.test}` chooses, and nests for GPUs are not rewritten so")
        case Store():
            lines = store(n, scope)
            return [f"// {n.stmt}{_said(n)}", *(threads.uniform(n, scope, lines) if scope.block else lines)]
        case Prefetch():
            return []
    assert_never(n)


def _writes_memory(n: Node, scope: Scope) -> bool:
    return any(threads.is_memory(s, scope) for s in stores((n,)))


def _tile(inside: tuple[Node, ...], scope: Scope) -> list[str]:
    """What each thread of a nest of threads does; where one question tells that all is inside, with a copy that asks no more."""
    found = cwhole.copy(inside, scope)
    if found is None:
        stored = cwhole.chain(inside)[1]
        return body(inside, replace(scope, most=roll.WHOLE) if stored and threads.is_memory(stored, scope) else scope)
    edge = body(inside, replace(scope, most=roll.EDGE))
    if parts := cparts.found(inside, scope, body):
        edge = _either(parts[0], parts[1], edge)
    if twos := cwhole.by_twos(inside, scope):
        edge = _either(twos[0], body(twos[1], replace(scope, whole=True, twos=True, most=roll.WHOLE)), edge)
    return _either(found[0], body(found[1], replace(scope, whole=True, most=roll.WHOLE)), edge)


def _either(test: str, whole: list[str], edge: list[str]) -> list[str]:
    return [f"if ({test}) {{", *("    " + x for x in whole), "} else {", *("    " + x for x in edge), "}"]


def _loop(n: For, scope: Scope) -> list[str]:
    """A loop that one thread goes through. Copies are unrolled, so that what they index is registers; bounds are tests then."""
    i, lower, upper = scope.names[n.index], index(n.lower, scope.names).c, index(n.upper, scope.names)
    step = f"++{i}" if n.step == 1 else f"{i} += {n.step}"
    # in a block, but in no loop over its threads, the first one alone writes memory: each store of a plain loop says so
    copy = None if scope.block else ccopy.run(n, scope)
    if copy:
        return copy
    if n.kind in LOCKSTEP:
        if scope.whole and (pairs := cpairs.of_rows(n, scope)):
            return cpairs.lines(pairs, scope, lambda s, inner: _node(s, inner))
        if by_rows := rows.lines(n, scope, _node):
            return by_rows
        rolled = roll.rolled(n, scope)
        turned, ends = rolled or (n.body, [])
        head = ["#pragma unroll 1" if rolled else "#pragma unroll", f"for (int {i} = 0; {i} < {n.end}; {step}) {{"]
        inside = _indented(turned, scope)
        tests = [] if not scope.block and windows.is_free(n, scope) else bounded(n, scope.names)
        bound = [f"    if ({' && '.join(tests)}) {{"] if tests else []
        plain = [*head, *bound, *(["    " + x for x in inside] + ["    }"] if bound else inside), *ends, "}"]
        return (None if scope.block else cwide.run(n, scope, plain, body)) or [*plain, *matrix.order(n, scope)]
    if not scope.block and (window := windows.prepared(n, scope)):
        return ["{", *("    " + x for x in (*window[0], *_node(*window[1:]))), "}"]
    is_small = n.lower == Affine() and any(b.is_constant for b in bounds(n.upper))
    if is_small and not n.upper.is_constant and _chooses_registers(n, scope):
        end = min(b.const for b in bounds(n.upper) if b.is_constant)
        tests = [condition(below(n, b), scope.names) for b in bounds(n.upper) if b != affine(end)]
        return ["#pragma unroll", f"for (int {i} = 0; {i} < {end}; {step}) {{", f"    if ({' && '.join(tests)}) {{",
                *("    " + x for x in _indented(n.body, scope)), "    }", "}"]
    terms = _adds_terms(n, scope)
    if terms and not scope.block and (wide := cterms.run(n, scope, _node)):
        return wide
    once = ["#pragma unroll 1"] if terms else []
    few = is_small and n.upper.is_constant and n.upper.const <= _UNROLLED * n.step
    head = [*(once or ([_unrolled(n, scope)] if few else [])),
            f"for ({'int' if is_small else scope.counts} {i} = {lower}; {i} < {upper.c}; {step}) {{"]
    asked = anew.anew(n, scope.anew) if scope.block else ()
    again = [f"    pop_anew({', '.join(scope.names[x] for x in asked)});"] if asked else []
    again += [f"    {threads.NUMBER} = pop_again({threads.NUMBER});"] if asked and scope.found else []
    return [*head, *again, *_indented(n.body, replace(scope, turns=scope.turns + 1), turn=n.index), "}"]


def _chooses_registers(n: For, scope: Scope) -> bool:
    """Whether the index of `n` chooses registers, which a number that is known must do, unless lanes hand them on."""
    return any(n.index in names(p) for s in stores(n.body) if s.stmt not in scope.tiles.handed
               for x in (s.target, *loads(s.expr)) for p in x.index
               if isinstance(p, Affine) and scope.buffers[x.source].space == Space.REG)


def _adds_terms(n: For, scope: Scope) -> bool:
    """Whether `n` adds up terms in a unit's results one by one: of these there are enough beside each other, and few atoms."""
    return any(isinstance(x, For) and x.kind == Kind.ATOM for x in walk(n.body)) and all(
        s.stmt in scope.tiles.handed or (s.reduce is not None and s.stmt not in scope.tiles.products) for s in stores(n.body))


def _unrolled(n: For, scope: Scope) -> str:
    """The pragma for a loop of few iterations: all of them, or as many as make a body that compilers take in good time.

    A copy that stands beside it takes time, too, and registers: f32 products with 132 of them had one block, not two. Sums of
    `deep` turns have all their steps, each of which is no more than loads from shared memory and as many sums.

    Iterations that meet at a barrier have nothing to share but registers for addresses, which are short then; nor have those
    around a loop of any length: eight channels of a group that is normalised took 9 s of a compiler's time, in three such loops.
    """
    if any(isinstance(x, Barrier) or _is_open(x) for x in walk(n.body)):
        return "#pragma unroll 1"
    copies = sum(_copies(x) for x in n.body)
    written = _SUMS if scope.deep and _only_adds(n, scope) else _WRITTEN
    trips, most = -(-n.upper.const // n.step), max(1, (written - scope.beside) // copies)
    if trips > _STEPS and any(isinstance(x, For) and x.kind == Kind.ATOM for x in walk(n.body)):
        most = min(most, max(1, _ATOMS // copies))
    return "#pragma unroll" if trips <= most else f"#pragma unroll {most}"


def _only_adds(n: For, scope: Scope) -> bool:
    """Whether all that `n` does is to add to registers."""
    return all(s.reduce is not None and scope.buffers[s.target.source].space == Space.REG for s in stores(n.body))


def _is_open(n: Node) -> bool:
    """Whether it is a loop of any number of iterations."""
    return isinstance(n, For) and n.kind == Kind.SERIAL and not n.upper.is_constant


def _copies(n: Node) -> int:
    """How many stores come of a node whose rows are unrolled; functions that compilers write out count as so many of them."""
    match n:
        case For():
            return sum(map(_copies, n.body)) * (n.extent or 1 if n.kind in LOCKSTEP else 1)
        case If():
            return sum(map(_copies, n.then + n.other)) + len(n.tests)
        case Store():
            return 1 + _FUNCTION * sum(isinstance(x, Apply) and x.fn in UNARY_FLOAT for x in walk_expr(n.expr))
    return 1


def _said(s: Store) -> str:
    """The statement as the nest's printer writes it, if that is short."""
    if sum(1 for _ in islice(walk_expr(s.expr), _LARGEST + 1)) > _LARGEST:
        return ""
    text = f": {s.target} {sign(s.reduce)} {s.expr}"
    return text if len(text) <= _WIDEST else ""
