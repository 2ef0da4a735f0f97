"""What a warp does with a matrix unit, as C text: tiles held in registers, their loads, products, and stores of single elements.

The lanes of a warp hold a tile together; which of them has which element is a row of data (`ir/atoms.py`). Loops over the
sides of a tile (Kind.ATOM) are therefore none in a kernel:

    for m, n, k (atom) { c[m, n] += f32(a[m, k]) * f32(b[k, n]) }    pop_mma_m16n8k16_f16(c, a, b);
    for m, k (atom) { a[m, k] = A_s[m, k] }                          pop_ldmatrix_x4(a, &A_s[..]);
    for m, n (atom) { C[m, n] = c[m, n] }                            see c/results.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from polyop.codegen.c import handed as chanded
from polyop.codegen.c import lanes, units
from polyop.codegen.c.digits import digits
from polyop.codegen.c.index import natural
from polyop.codegen.c.place import STORED, offset
from polyop.codegen.c.results import fold, spread
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu.held import Held, Rows, Tiles, extent, step
from polyop.codegen.gpu.slots import slot_counts
from polyop.codegen.nested import nested
from polyop.ir.atoms import Atom, Fragment, atoms_for
from polyop.ir.dots import factors
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine, expr_names, loads, names, substitute
from polyop.ir.loops import Buffer, For, If, Kind, LoopNest, Node, Space, Store, placed, stores
from polyop.ir.target import Target

_WORD = 4  # bytes of a register
_CHUNK = 16  # that are read at once


def find_tiles(nest: LoopNest, target: Target) -> Tiles:
    """The roles of registers, told by the products in which they stand.

    Raises  UnsupportedError, if the target has no such atom, or a register has two roles.
    """
    held: dict[str, Held] = {}
    products: dict[str, tuple[str, str, str]] = {}
    made: list[tuple[Load, Held]] = []
    for s, loops in placed(nest.body, Kind.ATOM):
        if s.reduce is None or not loops or isinstance(s.expr, Load):  # which is a fold
            continue
        sides = {f.index: f.extent or 0 for f in loops}
        found = factors(s.expr)
        kept = [p.name for p in s.target.index if isinstance(p, Affine) and p.name in sides]
        rest = [i for i in sides if i not in kept]
        if not rest:  # a term for each element of the results
            continue
        if s.reduce.fn != "add" or found is None or len(kept) < 2 or len(rest) != 1:
            raise UnsupportedError(f"`{s.target}` is no product of two tiles")
        a, b = found if kept[0] in expr_names(found[0]) else found[::-1]
        m, n = (tuple((i, sides[i]) for i in sides if i in kept and i in expr_names(x)) for x in (a, b))
        k = tuple((i, sides[i]) for i in rest)
        if len(m) + len(n) != len(kept):
            raise UnsupportedError(f"`{s.target}` has a side of both tiles")
        shared = tuple(nest.buffer(x.source).space == Space.SHARED for x in (a, b))  # the unit itself reads that
        fitting = [x for x in atoms_for(target, a.dtype, b.dtype, s.target.dtype)
                   if (x.m, x.n) == (extent(m), extent(n)) and (not x.a_map, not x.b_map) == shared
                   and (x.k == extent(k) or (shared[1] and extent(k) % x.k == 0))]
        if not fitting:
            raise UnsupportedError(f"{target.name} has no matrix unit for {a.dtype}[{extent(m)}, {extent(k)}]")
        atom = fitting[0]
        roles = [(s.target, Held(atom, atom.c_map, m, n))]
        roles += [(x, Held(atom, f, *at)) for x, f, at in ((a, atom.a_map, (m, k)), (b, atom.b_map, (k, n))) if f]
        made += [r for r in roles if _is_piece(*r)]
        roles = [r for r in roles if not _is_piece(*r)]
        for x, h in roles:
            if nest.buffer(x.source).space != Space.REG or held.setdefault(x.source, h) != h:
                raise UnsupportedError(f"{x.source} is no tile of one kind in registers")
        products[s.stmt] = (s.target.source, a.source, b.source)
    held = _beside(nest, held)
    _require_pieces(made, held)
    rows = lanes.find_rows(nest, held, {x.source for x, _ in made})
    handed = chanded.find(nest, held, rows)
    for s, loops in placed(nest.body, Kind.ATOM):
        mine = held.get(s.target.source)
        if loops and s.stmt not in {*products, *handed} and (mine is None or mine.fragment is mine.atom.c_map):
            lanes.require_own(s, loops, held, rows)
    return Tiles(held, rows, products, handed, target.warp, squares=target.family == "cuda")


def _is_piece(x: Load, h: Held) -> bool:
    """Whether an operand lies in registers as something else than a tile of its own."""
    if h.fragment is h.atom.a_map and h.atom.b_map is None:
        return True
    return any(isinstance(p, Affine) and p.name is None and names(p) & h.loops for p in x.index)


def _require_pieces(made: Iterable[tuple[Load, Held]], held: Mapping[str, Held]) -> None:
    """Raises  UnsupportedError, if lanes do not hold those operands in the registers of results."""
    for x, h in made:
        of = held.get(x.source)
        if of is None or of.fragment is not of.atom.c_map or of.row != h.row or of.atom.warp != h.atom.warp:
            raise UnsupportedError(f"{x.source} is no tile of results")
        for first in range(0, extent(h.column), h.atom.k):
            lanes.pieces(h.fragment, of.fragment, of.atom.n, h.atom.warp, first)


def _beside(nest: LoopNest, held: dict[str, Held]) -> dict[str, Held]:
    """`held`, and registers that meet a product's results element by element: each lane has the same elements of both."""
    more = dict(held)
    for s in (s for s, loops in placed(nest.body, Kind.ATOM) if loops):
        both = [x for x in (s.target, *loads(s.expr)) if nest.buffer(x.source).space == Space.REG]
        for h in {h for x in both if (h := more.get(x.source)) and h.fragment is h.atom.c_map}:
            more |= {x.source: h for x in both if x.source not in more and h.loops <= expr_names(x)}
    return more if len(more) == len(held) else _beside(nest, more)


def declared(b: Buffer, h: Held | Rows, c: str) -> str:
    """The registers of a buffer that holds tiles: `float acc[32][4];`."""
    count = prod(n.const for n in slot_counts(b))
    if isinstance(h, Rows) or h.fragment is h.atom.c_map:
        return f"{STORED[b.dtype.name]} {c}[{count}][{h.fragment.regs}];"
    alone = words(b, h.fragment) == 1 or b.dtype.bytes_ > _WORD  # an atom takes a single number as it is
    return f"{STORED[b.dtype.name] if alone else 'pop_u32'} {c}[{count}][{words(b, h.fragment)}];"


def results(body: tuple[Node, ...], scope: Scope) -> int:
    """Registers of a thread for the tiles that the products of a body add up."""
    found = {s.target.source for s in stores(body) if s.stmt in scope.tiles.products}
    tiles = [(scope.buffers[x], scope.tiles.held[x].fragment) for x in found]
    return sum(prod(n.const for n in slot_counts(b)) * words(b, fragment) for b, fragment in tiles)


def words(b: Buffer, f: Fragment) -> int:
    """Registers of a tile of operands."""
    return f.regs if b.dtype.bytes_ >= _WORD else f.regs * b.dtype.bytes_ // _WORD


def tile(n: For, scope: Scope, printed: Callable[[Store, Scope], list[str]]) -> list[str]:
    """The lines of loops over a tile; `printed`: those of one store."""
    loops, body = nested((n,), Kind.ATOM)
    tests: tuple[Affine, ...] = ()
    while len(body) == 1 and isinstance(body[0], If) and not body[0].other:
        tests, body = (*tests, *body[0].tests), body[0].then
    if len(body) != 1 or not isinstance(body[0], Store):
        raise UnsupportedError(f"{n.index} is a side of a tile, and there is more than one statement in it")
    s = body[0]
    if s.target.source in scope.tiles.rows and s.reduce is not None:
        return fold(loops, s, scope, tests)
    if s.stmt in scope.tiles.handed:
        return chanded.lines(loops, s, scope, tests)
    if s.stmt in scope.tiles.products:
        of_c = scope.tiles.held[s.target.source]
        # elements of the result that a test leaves out are nobody's; terms of a sum that it leaves out must not be added
        if any(f.index in names(t) for t in tests for f in loops if f.index not in of_c.loops):
            raise UnsupportedError(f"`{s.target}` leaves out terms of a sum that a matrix unit adds")
        return _product(s, loops, scope)
    if tests:
        return spread(loops, s, scope, printed, tests)
    h = scope.tiles.held.get(s.target.source)
    if h and h.fragment is not h.atom.c_map:
        return _loaded(s, h, scope)
    return spread(loops, s, scope, printed)


def tile_at(x: Load, scope: Scope) -> str:
    """The registers of one tile."""
    return f"{scope.names[x.source]}[{offset(x, {}, scope).c}]"


def _product(s: Store, loops: tuple[For, ...], scope: Scope) -> list[str]:
    found = factors(s.expr)
    assert found is not None
    a, b = found
    if a.source != scope.tiles.products[s.stmt][1]:
        a, b = b, a
    h = scope.tiles.held[s.target.source]
    atom = h.atom
    (k,) = (f for f in loops if f.index not in h.loops)
    left = scope.tiles.held.get(a.source)
    made = [_words_of(a, left, atom, k.index, at, scope) for at in range(0, k.end, atom.k)] if left and (
        left.fragment is not atom.a_map) else []
    if units.reads_shared(s, scope):
        return units.product(atom, tile_at(s.target, scope), a, b, (h.row, h.column, k), scope, made)
    if made:
        end = "[0]" if words(scope.buffers[b.source], scope.tiles.held[b.source].fragment) == 1 else ""
        return ["{", f"    const pop_u32 pop_a[{len(made[0])}] = {{{', '.join(made[0])}}};",
                f"    {atom.wrapper}({tile_at(s.target, scope)}, pop_a, {tile_at(b, scope)}{end});", "}"]
    ends = ["[0]" if words(scope.buffers[x.source], scope.tiles.held[x.source].fragment) == 1 else "" for x in (a, b)]
    return [f"{atom.wrapper}({tile_at(s.target, scope)}, {tile_at(a, scope)}{ends[0]}, {tile_at(b, scope)}{ends[1]});"]


def _words_of(a: Load, of: Held, atom: Atom, k: str, first: int, scope: Scope) -> list[str]:
    """The registers of a left operand made of elements of results, two of 16 bits in each, from `first` on along the sum."""
    assert atom.a_map
    if a.dtype.bytes_ != _WORD // 2:
        raise UnsupportedError(f"{a.dtype} is made of no results")
    found = []
    for piece in lanes.pieces(atom.a_map, of.fragment, of.atom.n, atom.warp, first):
        at = Load(a.source, tuple(substitute(p, {k: affine(piece.column)}) for p in a.index if isinstance(p, Affine)), a.dtype)
        found.append(f"{tile_at(at, scope)}[{piece.reg}]")
    return [f"pop_pair({x}, {y})" for x, y in zip(found[::2], found[1::2], strict=True)]


def order(n: For, scope: Scope) -> list[str]:
    """The hint in which order a lane reads tiles and multiplies them in steps `n` of a sum that are written out: where there are
    as many products as reads, each read may stand between two of them.
    """
    if scope.tiles.squares or n.kind != Kind.ROWS or not n.is_full:
        return []
    reads = products = 0
    for s, loops in placed(n.body, Kind.ROWS, Kind.ATOM):
        times = prod(f.extent or 1 for f in loops if f.kind == Kind.ROWS)
        h = scope.tiles.held.get(s.target.source)
        if s.stmt in scope.tiles.products and h:
            products += times * h.atom.parts
        elif h and h.fragment is not h.atom.c_map:
            reads += times * (h.fragment.regs * s.target.dtype.bytes_ // _CHUNK)
        else:
            return []
    return [f"pop_interleave<{n.extent}, {reads}, {products}>();"] if 0 < reads <= products else []


# --- loads ------------------------------------------------------------------------------------------------------------------


def _loaded(s: Store, h: Held, scope: Scope) -> list[str]:
    """A tile from shared memory: in squares of 8 lines, if the target can; as far as elements lie together, else one by one."""
    source = s.expr
    if not isinstance(source, Load) or source.guard or scope.buffers[source.source].space != Space.SHARED:
        raise UnsupportedError(f"`{s.expr}` is no tile in shared memory")
    strides = _strides(source, h, scope)
    squares = _squares(h.fragment) if scope.tiles.squares and s.target.dtype.bytes_ == 2 else None
    if squares and 1 in strides:
        return _by_squares(s, source, h, squares, strides, scope)
    return _by_elements(s, source, h, strides, scope)


def _strides(source: Load, h: Held, scope: Scope) -> tuple[int, int]:
    """How far apart neighbours in a row, and in a column, lie in shared memory: along `row` and along `column`."""
    counts = [n.const for n in slot_counts(scope.buffers[source.source])]
    flat = Affine()
    for d, p in enumerate(source.index):
        assert isinstance(p, Affine)
        flat = flat + p * prod(counts[d + 1:])
    return step(flat, h.row), step(flat, h.column)


@dataclass(frozen=True, slots=True)
class _Squares:
    """A fragment as squares of 8 x 8: `along`, 0 or 1, is the side in which a lane holds two neighbours; `bases` of them."""

    along: int
    bases: tuple[tuple[int, int], ...]


def _squares(f: Fragment) -> _Squares | None:
    """{ [lane, reg] -> base(reg / 2) + [lane / 4, 2 (lane mod 4) + reg mod 2] }, or with rows and columns exchanged."""
    if f.regs not in (4, 8):
        return None
    bases = tuple(f.at(0, r) for r in range(0, f.regs, 2))
    for along in (1, 0):
        def place(lane: int, reg: int, along: int = along) -> tuple[int, int]:
            line, beside = lane // 4, 2 * (lane % 4) + reg % 2
            row, column = (line, beside) if along else (beside, line)
            return bases[reg // 2][0] + row, bases[reg // 2][1] + column
        if all(f.at(lane, reg) == place(lane, reg) for lane in range(32) for reg in range(f.regs)):
            return _Squares(along, bases)
    return None


def _by_squares(s: Store, source: Load, h: Held, q: _Squares, strides: tuple[int, int], scope: Scope) -> list[str]:
    """Each lane says where a line of 16 bytes lies: line i of square s for lane 8 s + i."""
    contiguous = 0 if strides[0] == 1 else 1
    turned = contiguous != q.along
    line = 1 - contiguous
    sides = []
    for d in (0, 1):
        one, two = q.bases[1][d] - q.bases[0][d], q.bases[2][d] - q.bases[0][d] if len(q.bases) == 4 else 0
        parts = ["pop_lane() % 8"] if d == line else []
        parts += [f"{'pop_lane() / 8 % 2'} * {one}"] if one else []
        parts += [f"pop_lane() / 16 * {two}"] if two else []
        if len(q.bases) == 4 and q.bases[3][d] - q.bases[0][d] != one + two:
            raise UnsupportedError("squares that do not lie in a rectangle")
        sides.append(" + ".join(parts) or "0")
    load = f"pop_ldmatrix_x{len(q.bases)}{'_trans' if turned else ''}"
    return ["{", f"    {_at_place(h, f'(int)({sides[0]})', f'(int)({sides[1]})', scope)}",
            f"    {load}({tile_at(s.target, scope)}, &{tile_at(source, scope)});", "}"]


def _at_place(h: Held, row: str, column: str, scope: Scope) -> str:
    """Declares what the loops over a tile's sides are at one place of it."""
    found = (*digits(h.row, row), *digits(h.column, column))
    return f"const int {', '.join(f'{scope.names[i]} = {at}' for i, at in found)};"


def _by_elements(s: Store, source: Load, h: Held, strides: tuple[int, int], scope: Scope) -> list[str]:
    f, t = h.fragment, s.target.dtype
    lines = ["{"]
    steps = {(f.at(lane, r + 1)[0] - f.at(lane, r)[0]) * strides[0] + (f.at(lane, r + 1)[1] - f.at(lane, r)[1]) * strides[1]
             for lane in range(h.atom.warp) for r in range(f.regs - 1)}
    whole = f.regs * t.bytes_
    env = {"lane": "(int)pop_lane()"}

    def side(x: Affine, reg: int) -> str:
        return natural(x, {**env, "reg": str(reg)})

    if h.atom.exact and steps <= {1} and whole % 8 == 0 and whole <= 64 and f.regs > 1:
        chunk = _CHUNK if whole % _CHUNK == 0 else 8
        for at in range(0, whole, chunk):  # elements that lie together do so inside an eighth of a swizzled line
            sides = _at_place(h, side(f.row, at // t.bytes_), side(f.column, at // t.bytes_), scope)
            to = f"{tile_at(s.target, scope)}[{at // max(_WORD, t.bytes_)}]"
            lines.append(f"    {{ {sides} pop_move<{chunk}>(&{to}, &{tile_at(source, scope)}); }}")
        return [*lines, "}"]
    per = max(1, _WORD // t.bytes_)
    for w in range(f.regs // per):
        terms = []
        lines.append("    {")
        for e in range(per):
            row, column = side(f.row, w * per + e), side(f.column, w * per + e)
            inside = {i: f"({at})" for i, at in (*digits(h.row, row), *digits(h.column, column))}
            text = tile_at(source, replace(scope, names={**scope.names, **inside}))
            if t.bytes_ > _WORD or f.regs == 1:
                terms.append(text)
            elif t.bytes_ == 4:
                word = "pop_bits" if h.atom.exact else "pop_tf32"
                terms.append(f"{word}({text})" if t.is_float else f"(pop_u32){text}")
            else:
                mask = "" if t.bytes_ == 2 else "(pop_u8)"
                terms.append(f"(pop_u32){mask}{text}" + (f" << {8 * t.bytes_ * e}" if e else ""))
        lines += [f"        {tile_at(s.target, scope)}[{w}] = {' | '.join(terms)};", "    }"]
    return [*lines, "}"]

