"""A kernel of several parts, as C text: it has the blocks of the first one, then those of the next.

    pop_u32 pop_block = blockIdx.x;
    {
        const int r_count = R;
        const pop_u32 pop_blocks = (r_count + blockDim.x - 1) / blockDim.x;
        if (pop_block < pop_blocks) { ..  return; }
        pop_block -= pop_blocks;
    }
    ..
"""

from __future__ import annotations

from collections.abc import Sequence

from polyop.codegen.c.points import Points
from polyop.codegen.c.scope import Scope
from polyop.codegen.c.threads import number

_BLOCK, _BLOCKS = "pop_block", "pop_blocks"


def beside(parts: Sequence[Points], scopes: Sequence[Scope], inside: Sequence[list[str]], sizes: frozenset[str]) -> list[str]:
    """What the threads of all parts do, of which each does what stands `inside` at its points."""
    out = [f"pop_u32 {_BLOCK} = blockIdx.x;"]
    for k, (p, scope, lines) in enumerate(zip(parts, scopes, inside, strict=True)):
        one = [] if p.axes or scope.block else ["if (threadIdx.x != 0) return;"]
        lines = [*number(scope), *p.start(scope, _BLOCK), *one, *lines]
        if k + 1 < len(parts):
            points = " * ".join(p.names(scope)) or "1"
            blocks = points if scope.block or not p.axes else f"({points} + blockDim.x - 1) / blockDim.x"
            lines = [f"const pop_u32 {_BLOCKS} = {blocks};", f"if ({_BLOCK} < {_BLOCKS}) {{", *("    " + x for x in lines),
                     "    return;", "}", f"{_BLOCK} -= {_BLOCKS};"]
        out += ["{", *("    " + x for x in (*p.counts(scope, sizes), *lines)), "}"]
    return out
