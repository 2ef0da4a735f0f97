"""Which parallel loops are shared out together.

Those that stand directly in one another, but also one that stands last in another, perhaps inside serial loops, where all that
stands before it is what every thread can do for itself:

    for n in [0, N) (parallel)
      for k in [0, K)                                    each thread goes through k on its own, with its part of the (n, m)
        for j in [0, J) { own[j] = B[k, n, j] }          `own` is private: whoever takes some m for this n needs it
        for m in [0, M) (parallel) { .. own .. }

That m at one k does not meet another m at another k is proved (`poly/verify/conflicts.py`), and that what is read of `own` was
written in the same iteration of n (`poly/verify/accesses.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.expr import loads, names
from polyop.ir.loops import For, IfData, Kind, LoopNest, stores, walk


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """Parallel loops whose iterations are counted through, outermost first.

    around   how many of them stand around the innermost place where a thread does something for itself alone; 0: there is none
    """

    loops: tuple[For, ...]
    around: int = 0


def together(nest: LoopNest, n: For) -> Chain:
    """The chain that begins with `n`; the bounds of no loop in it depend on another one in it or between."""
    loops, path, around = [n], {n.index}, 0
    inner = n
    while True:
        last = inner.body[-1] if inner.body else None
        if not isinstance(last, For) or last.kind not in (Kind.SERIAL, Kind.PARALLEL) or not _is_own(nest, inner, last):
            break
        if (names(last.lower) | names(last.upper)) & path:
            break
        if len(inner.body) > 1:
            around = len(loops)
        inner = last
        path.add(inner.index)
        if inner.kind == Kind.PARALLEL:
            loops.append(inner)
    return Chain(tuple(loops), around if around < len(loops) else 0)


def _is_own(nest: LoopNest, n: For, last: For) -> bool:
    """Whether each thread that takes a part of `last` may carry out all that stands before it in `n`.

    What that writes is in memory of the thread's own, and nothing that it reads or writes is written by `last`.
    """
    before = n.body[:-1]
    later = {x.target.source for x in stores(last.body)}
    later |= {name for pair in nest.in_place for name in pair if later & set(pair)}
    written = {x.target.source for x in stores(before)}
    read = {y.source for x in stores(before) for e in (x.expr, x.target) for y in loads(e)}
    decided = any(isinstance(x, IfData) for x in walk(before))  # by data, which is not looked through here
    return not decided and all(nest.buffer(b).private for b in written) and not (written | read) & later
