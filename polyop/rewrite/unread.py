"""Temporaries of which no result is made, as a condition that never holds leaves them, or a rewrite: nobody computes them."""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.op import Op


def without_unread(op: Op) -> Op:
    """`op` without temporaries that no result is computed from."""
    needed, found = set[str](), {t.name for t in op.outputs}
    while found:
        needed |= found
        found = {x.source for s in op.steps if s.target.source in found for x in s.reads} - needed
    unread = {t.name for t in op.temporaries} - needed
    if not unread:
        return op
    return replace(op, tensors=tuple(t for t in op.tensors if t.name not in unread),
                   steps=tuple(s for s in op.steps if s.target.source not in unread))
