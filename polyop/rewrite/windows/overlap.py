"""Overlapped tiles: what is handed over from step to step with rows to spare is computed tile by tile, the spare rows twice.

    T[i, j] = f(X[i, j])                              with i in 0:N + 2
    Y[i, j] = T[i, j] + T[i + 1, j] + T[i + 2, j]     with i in 0:N

becomes, with tiles of 32 rows,

    T_tile[b, p, j] = f(X[32 b + p, j])               where p in 0:34, 32 b + p < N + 2
    Y[32 b + p, j]  = T_tile[b, p, j] + T_tile[b, p + 1, j] + T_tile[b, p + 2, j]     where p in 0:32, 32 b + p < N

with b in 0:ceil(N / 32). A row that two tiles need is an element of each tile's own copy, so every element is still computed
once, and tiles have nothing to do with each other: the scheduler finds a loop over b around everything, whose iterations may run
on any thread, and keeps one tile of T at a time. Which element each copy is one of is claimed (`ir/copies.py`), and proved.

Source: Krishnamoorthy et al., "Effective automatic parallelization of stencil computations", 2007.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyop.ir.copies import Copies, Origin, Recomputed
from polyop.ir.expr import Affine, Expr, Load, Test, affine, map_loads, place, quasi, substitute, substitute_expr
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.bounds import never_negative
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.windows.chains import Chain, Rows, find_chains, row_of


def cut_into_tiles(op: Op, tile: int) -> Recomputed | None:
    """`op` with its chains in tiles of `tile` rows, or of all, if these are known to be fewer; None if it has no chain."""
    chains = find_chains(op)
    if not chains or not tile:
        return None
    taken = all_names(op)
    cuts = [_Tiles(op, c, min(tile, max(1, c.extent.const)) if c.extent.is_constant else tile, taken) for c in chains]
    by_tensor = {t: cut for cut in cuts for t in cut.chain.rows}
    steps: list[tuple[Step, Origin]] = []
    for n, s in enumerate(op.steps):
        cut = by_tensor.get(s.target.source)
        steps += cut.step(n, s) if cut else [(s, Origin(n, tuple(map(affine, s.indices))))]
    gone = {t.name for c in chains for t in c.handed}
    tensors = (*(t for t in op.tensors if t.name not in gone), *(t for cut in cuts for t in cut.tensors.values()))
    made = replace(op, tensors=tensors, steps=tuple(s for s, _ in steps))
    return Recomputed(made, tuple(c for cut in cuts for c in cut.copies()), tuple(o for _, o in steps))


@dataclass(eq=False)
class _Tiles:
    """One chain on its way into tiles. `b` counts tiles, `p` rows in a tile; `tensors`: those that have a copy of each row."""

    op: Op
    chain: Chain
    tile: int
    taken: set[str]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.b, self.p = (fresh(x, self.taken) for x in ("tile", "row"))
        self.count = quasi("div", self.chain.extent + (self.tile - 1), affine(self.tile))
        sums = [t for t in self.chain.ends if any(s.reduce for s in self.op.steps_of(t))]
        self.handed = frozenset(t.name for t in self.chain.handed)
        for name in (*(t.name for t in self.chain.handed), *sums):
            t, r = self.op.tensor(name), self.chain.rows[name]
            shape = (*t.shape[: r.dim], self.count, r.count(self.tile), *t.shape[r.dim + 1 :])
            self.tensors[name] = Tensor(fresh(f"{name}_tile", self.taken), t.dtype, shape, "temp")

    def start(self, r: Rows) -> Affine:
        """The first row of the tile."""
        return affine(self.b) * (self.tile * r.stride) + r.first

    def step(self, n: int, s: Step) -> list[tuple[Step, Origin]]:
        """What carries out step `n` of the operator; after the last one that adds to an end, the sums are put there."""
        name = s.target.source
        r = self.chain.rows[name]
        row, own = row_of(s, r), s.target.index[r.dim]
        assert row is not None and isinstance(own, Affine)
        at = self.start(r) + affine(self.p) - own.const
        env = {row.index: at}
        ranges = tuple(y for x in s.ranges for y in (self.along(r) if x is row else (x,)))
        limits = [x for x in (at - row.lower, row.upper - 1 - at, *self.needed(name))
                  if not never_negative(x, self.op.sizes, ranges)]
        where = (*(Test((x,)) for x in limits), *(substitute_expr(w, env) for w in s.where))
        target = self.copy(s.target, env) if name in self.tensors else place(s.target, env)
        made = replace(s, target=target, expr=self.moved(s.expr, env), ranges=ranges, where=where)
        steps = [(made, Origin(n, tuple(substitute(affine(i), env) for i in s.indices)))]
        if name in self.tensors and name in self.chain.ends and s is self.op.steps_of(name)[-1]:
            steps.append((self.put(s, r), Origin(None)))
        return steps

    def needed(self, name: str) -> list[Affine]:
        """What must not be negative for a tile to need `name`: a window may leave nothing of columns that exist."""
        end = self.chain.ends[0]
        others = [e for d, e in enumerate(self.op.tensor(end).shape) if d != self.chain.rows[end].dim]
        return [e - 1 for e in others if e.name is None] if name in self.handed else []

    def along(self, r: Rows) -> tuple[Range, Range]:
        return Range(self.b, Affine(), self.count), Range(self.p, Affine(), r.count(self.tile))

    def moved(self, e: Expr, env: Mapping[str, Affine]) -> Expr:
        """`e` in a tile: what is handed over comes from its copy."""
        def read(x: Load) -> Expr:
            return self.copy(x, env) if x.source in self.handed else x

        return substitute_expr(map_loads(e, read), env)

    def copy(self, x: Load, env: Mapping[str, Affine]) -> Load:
        """`x`, whose tensor has copies, in the tile's own one."""
        r = self.chain.rows[x.source]
        at = x.index[r.dim]
        assert isinstance(at, Affine)
        x = place(x, env)
        index = (*x.index[: r.dim], affine(self.b), substitute(at, env) - self.start(r), *x.index[r.dim + 1 :])
        return replace(x, source=self.tensors[x.source].name, index=index)

    def put(self, s: Step, r: Rows) -> Step:
        """The sums of a tile into the end that `s` adds to."""
        t = self.op.tensor(s.target.source)
        free = [fresh(f"{t.name}_{d}", self.taken) for d in range(len(t.shape))]
        target = Load(t.name, tuple(map(affine, free)), t.dtype)
        env = {free[r.dim]: self.start(r) + affine(self.p)}
        whole = [Range(i, Affine(), e) for i, e in zip(free, t.shape, strict=True)]
        ranges = (*whole[: r.dim], *self.along(r), *whole[r.dim + 1 :])
        inside = Test((t.shape[r.dim] - 1 - env[free[r.dim]],))
        return Step(place(target, env), None, self.copy(target, env), ranges, (inside,), s.span)

    def copies(self) -> list[Copies]:
        out = []
        for name, t in self.tensors.items():
            r = self.chain.rows[name]
            free = [f"{t.name}_{d}" for d in range(len(t.shape))]
            row = affine(free[r.dim]) * (self.tile * r.stride) + r.first + affine(free[r.dim + 1])
            index = (*map(affine, free[: r.dim]), row, *map(affine, free[r.dim + 2 :]))
            out.append(Copies(t.name, name, tuple(free), index))
        return out
