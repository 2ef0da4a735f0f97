"""Products of a matrix unit that reads its operands from shared memory itself, as C text: they go on while their threads do.

    for m, n, k (atom) { c[m, n] += f32(A_s[.., m, k]) * f32(B_s[.., k, n]) }

    pop_wgmma_m64n128k16_f16<0, 1>(c[0], pop_wgmma_tile(&A_s[..], 1024, 0), pop_wgmma_tile(&B_s[..], 1024, 8192), true);

once for each 16 k's. Tiles are swizzled by lines of 128 bytes. A line runs along the sum (rows of k's) or across it (rows of m's
or n's); of the latter a panel takes as many bytes as it has lines, which is the distance to the next panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from polyop.codegen.c.index import multiple
from polyop.codegen.c.place import element
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu.held import Digits, step
from polyop.codegen.gpu.slots import slot_counts
from polyop.codegen.nested import tile
from polyop.ir.atoms import Atom
from polyop.ir.dtypes import BF16, F16
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Const, Load, affine, loads, names, substitute
from polyop.ir.loops import Barrier, For, Kind, Node, Space, Store, stores, walk

LINE = 128
"""Bytes of a swizzled line."""

_ROWS = 8  # after which the pattern of a swizzle repeats
_MADE = "const pop_u32"  # how the registers of an operand are declared


def reads_shared(s: Store, scope: Scope) -> bool:
    """Whether `s` is a product whose right operand lies in shared memory."""
    return s.stmt in scope.tiles.products and scope.buffers[scope.tiles.products[s.stmt][2]].space == Space.SHARED


def product(atom: Atom, c: str, a: Load, b: Load, sides: tuple[Digits, Digits, For], scope: Scope,
            made: Sequence[Sequence[str]] = ()) -> list[str]:
    """The calls for a tile of `a` and one of `b`, whose sides m, n and k the loops `sides` count: one for each atom along k.

    made    the registers of `a` for each of them, if it lies there

    Raises  UnsupportedError, if a tile does not lie as the unit reads it.
    """
    m, n, k = sides
    lines = [f"{_MADE} pop_a{t}[{len(x)}] = {{{', '.join(x)}}};" for t, x in enumerate(made)]
    for t, at in enumerate(range(0, k.end, atom.k)):
        across, left = ("", f"pop_a{t}") if made else _operand(a, m, k.index, at, atom.m, atom, scope)
        also, right = _operand(b, n, k.index, at, atom.n, atom, scope)
        adds = "false" if scope.fresh and t == 0 else "true"
        lines.append(f"{atom.wrapper}<{across}{', ' * (not made)}{also}>({c}, {left}, {right}, {adds});")
    return lines


def _operand(x: Load, side: Digits, k: str, at: int, extent: int, atom: Atom, scope: Scope) -> tuple[int, str]:
    """Whether the lines of an operand run across the sum, and the descriptor of its tile from `at` on along the sum."""
    b = scope.buffers[x.source]
    positions = [p for p in x.index if isinstance(p, Affine)]
    if b.swizzle != LINE or b.folded or x.guard or len(positions) != len(b.dims):
        raise UnsupportedError(f"`{x}` is no swizzled tile in shared memory")
    line = LINE // b.dtype.bytes_
    y, last = positions[-2:]
    loops = {i for i, _ in side}
    across = bool(loops & names(last))
    along, other = (side, ((k, 1),)) if across else (((k, 1),), side)
    if any((loops | {k}) & names(p) for p in positions[:-2]) or (step(last, along), step(y, other)) != (1, 1) \
            or any(i in names(last) for i, _ in other) or any(i in names(y) for i, _ in along):
        raise UnsupportedError(f"`{x}` is not indexed by the sides of a tile")
    # the descriptor points at the first element, which lies where it would without a swizzle
    zero = {**dict.fromkeys(loops, Affine()), k: affine(at)}
    first = Load(x.source, tuple(substitute(p, zero) for p in positions), x.dtype)
    row, column = (p for p in first.index[-2:] if isinstance(p, Affine))
    whole = min(line, extent if across else atom.k)
    if multiple(row, scope.steps) % _ROWS or multiple(column, scope.steps) % whole:
        raise UnsupportedError(f"`{x}` does not start where a unit's tile can")
    lines = slot_counts(b)[-2].const
    leading = lines * LINE if across else 0
    start, beyond = first, ""
    if multiple(column - (0 if across else at), scope.steps) % line == 0:  # of one tile all descriptors but the first are sums
        start = Load(x.source, tuple(substitute(p, zero | {k: Affine()}) for p in positions), x.dtype)
        bytes_ = at * LINE if across else at // line * lines * LINE + at % line * b.dtype.bytes_
        beyond = f", {bytes_}" if at else ""
    return int(across), f"pop_wgmma_tile(&{element(start, {}, scope)}, {_ROWS * LINE}, {leading}{beyond})"


def is_finite(x: Load, scope: Scope) -> str:
    """Whether all of a tile in shared memory is finite that begins at `x`: each warp looks at all of it, so all say the same."""
    count = prod(n.const for n in slot_counts(scope.buffers[x.source])[-2:])
    exponent = {F16: 0x7c00, BF16: 0x7f80}[x.dtype]
    return f"pop_tile_is_finite<{count}, {exponent:#x}>(&{element(x, {}, scope)})"


def is_begun(first: Node, n: Node, scope: Scope) -> bool:
    """Whether `first` clears results of which `n` is the product, all of it: the unit then begins with it."""
    zero, product = tile(first), tile(n)
    if zero is None or product is None or not reads_shared(product.store, scope) or zero.store.target != product.store.target:
        return False
    alone = isinstance(n, For) and n.kind == Kind.ATOM  # behind a test there may be no product
    if not alone or any(f.kind != Kind.ATOM for f in (*zero.loops, *product.loops)) or zero.store.reduce is not None:
        return False
    return isinstance(zero.store.expr, Const) and zero.store.expr.value == 0


def group(inside: tuple[Node, ...], lines: list[str], scope: Scope) -> list[str]:
    """`lines`, those of one nest of threads, with what starts the products in it; as they are, if there are none.

    Raises  UnsupportedError, if something else stands beside products that go on.
    """
    mine = stores(inside)
    if not any(reads_shared(s, scope) for s in mine):
        return lines
    if not all(reads_shared(s, scope) for s in mine):
        raise UnsupportedError("beside products that go on while their threads do there are other statements")
    made = [x for x in lines if x.strip().startswith(_MADE)]  # what is in registers is made before
    return ["{", *made, "pop_wgmma_fence();", *(x for x in lines if x not in made), "pop_wgmma_commit();", "}"] if made else [
        "pop_wgmma_fence();", *lines, "pop_wgmma_commit();"]


def started(n: Node, scope: Scope) -> frozenset[str]:
    """The registers that products work on which `n` starts: a nest of threads, or the tile itself, if no such nest is around it.

    Or which a loop leaves working when it ends.
    """
    if not isinstance(n, For):
        return frozenset()
    if n.kind == Kind.SERIAL:
        return frozenset(s.target.source for s in stores(n.body) if s.outlasts and reads_shared(s, scope))
    if n.kind not in ((Kind.THREADS, Kind.ATOM) if scope.block else (Kind.THREADS,)):
        return frozenset()
    return frozenset(s.target.source for s in stores(n.body) if reads_shared(s, scope))


PASSED = "pop_wgmma_wait<1>();  // this turn's products go on; what those of the turn before read may be written again"


def must_wait(n: Node, results: frozenset[str]) -> bool:
    """Whether products that work on `results` must have ended before `n`.

    That is before these registers are used but by more products, and before a barrier: what they read is written again behind
    one only, since no proof of threads takes a tile's reads for those of the thread that writes.
    """
    inside = tuple(walk((n,)))
    return any(isinstance(x, Barrier) for x in inside) \
        or any(x.source in results for s in stores(inside) if not s.outlasts for e in (s.target, s.expr) for x in loads(e))


def ended(results: frozenset[str], scope: Scope) -> list[str]:
    """The wait for all products; the compiler uses their results no earlier."""
    counts = {r: prod(n.const for n in slot_counts(scope.buffers[r])) for r in sorted(results)}
    held = [f"pop_wgmma_hold({scope.names[r]}[{i}]);" for r, count in counts.items() for i in range(count)]
    return ["pop_wgmma_wait<0>();  // what they read may be written again, and their results be used", *held] if results else []


def may_pass(turn: tuple[Node, ...], going: frozenset[str], scope: Scope) -> bool:
    """Whether the products that a turn of a loop leaves going may be those of the next turn's barrier, the only one, too.

    Those of the turn before have ended then: what they read may be written behind that barrier.
    """
    here = [s for n in turn if isinstance(n, For) and n.kind != Kind.SERIAL for s in stores(n.body) if reads_shared(s, scope)]
    alone = sum(isinstance(n, Barrier) for n in turn) == sum(isinstance(n, Barrier) for n in walk(turn)) == 1
    return bool(going) and alone and all(s.outlasts for s in here) and going <= {s.target.source for s in here}


def chains(body: tuple[Node, ...]) -> frozenset[str]:
    """The serial loops in which nothing but another one stands, wherever one of this name does: as proofs see the nest."""
    loops = [n for n in walk(body) if isinstance(n, For)]
    other = {n.index for n in loops if n.kind != Kind.SERIAL or len(n.body) != 1 or not _is_serial(n.body[0])}
    return frozenset(n.index for n in loops) - other


def _is_serial(n: Node) -> bool:
    return isinstance(n, For) and n.kind == Kind.SERIAL


def lanes(inside: tuple[Node, ...], scope: Scope) -> int:
    """How many threads share a tile in one nest of threads: those that carry out its atom; 1, if there is none."""
    if not any(isinstance(n, For) and n.kind == Kind.ATOM for n in walk(inside)):
        return 1
    found = {x.source for s in stores(inside) for x in (s.target, *loads(s.expr))}
    warps = [scope.tiles.held[x].atom.warp for x in found & scope.tiles.held.keys()]
    return max(*warps, *(scope.tiles.rows[x].warp for x in found & scope.tiles.rows.keys()), 0) or scope.tiles.warp


def steps(body: tuple[Node, ...]) -> dict[str, int]:
    """What the index of each loop is a multiple of."""
    found: dict[str, int] = {}
    for n in walk(body):
        if isinstance(n, For):
            found[n.index] = gcd(found.get(n.index, 0), n.step if n.lower == Affine() else 1)
    return found
