"""What is known about index expressions from ranges and from sizes being >= 0: enough to drop tests that always hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyop.ir.expr import Affine, Quasi, Test, affine, names
from polyop.ir.op import Op, Range


def least_sizes(op: Op, least: int = 0) -> dict[str, int]:
    """What each size of `op` is at least, where all are at least `least`: more where a call must have more, as { w >= 1 }."""
    found = dict.fromkeys(op.sizes, least)
    for t in (t for f in op.facts if isinstance(f, Test) for t in f.tests):
        if len(t.terms) == 1 and t.terms[0][1] == 1 and t.terms[0][0] in found:
            found[str(t.terms[0][0])] = max(found[str(t.terms[0][0])], -t.const)
    return found


def never_negative(x: Affine, sizes: Iterable[str] | Mapping[str, int], ranges: tuple[Range, ...] = ()) -> bool:
    """Whether `x >= 0` at every point of `ranges`, for all sizes >= 0. A no means only that it was not seen.

    Sizes may come with what they are at least.

    Each iterator is replaced by the end of its range that makes `x` smallest, the inner ones first, since their bounds
    may use the outer ones. At a point of the ranges none of them is empty, so `upper - 1 >= lower` may be used.
    """
    known = sizes if isinstance(sizes, Mapping) else dict.fromkeys(sizes, 0)
    low = _smallest(x, ranges)
    low = _undivided(low) if low else None
    if low is None or any(f < 0 or not (a in known if isinstance(a, str) else _is_natural(a, known)) for a, f in low.terms):
        return False
    return low.const + sum(f * known[a] for a, f in low.terms if isinstance(a, str)) >= 0


def always_negative(x: Affine, sizes: Iterable[str], ranges: tuple[Range, ...] = ()) -> bool:
    """Whether `x < 0` at every point of `ranges`, for all sizes >= 0."""
    return never_negative(x * -1 - 1, sizes, ranges)


def _smallest(x: Affine, ranges: tuple[Range, ...]) -> Affine | None:
    """A lower bound of `x` in which no iterator is left; None if one hides in a quasi-affine atom."""
    for r in reversed(ranges):
        factor = x.factor(r.index)
        if factor:
            rest = x - affine(r.index) * factor
            x = rest + (r.lower if factor > 0 else r.upper - 1) * factor
    indices = {r.index for r in ranges}
    return None if names(_lowered(x)) & indices else _lowered(x)


def _lowered(x: Affine) -> Affine:
    """`x` with every remainder replaced by its least value: `0 <= (a mod d) <= d - 1`."""
    total = Affine(const=x.const)
    for atom, factor in x.terms:
        if isinstance(atom, Quasi) and atom.op == "mod":
            total = total + (0 if factor > 0 else (atom.args[1].const - 1) * factor)
        else:
            total = total + affine(atom) * factor
    return total


def _undivided(x: Affine) -> Affine:
    """What is >= 0 only if `x` is, where no quotient is subtracted: `d floor(a / d) <= a`."""
    for atom, factor in x.terms:
        if isinstance(atom, Quasi) and atom.op == "div" and factor < 0:
            a, d = atom.args[0], atom.args[1].const
            return _undivided((x - affine(atom) * factor) * d + a * factor)
    return x


def _is_natural(atom: Quasi, sizes: Mapping[str, int]) -> bool:
    """Whether an atom over sizes alone is >= 0."""
    parts = [never_negative(a, sizes) for a in atom.args]
    return atom.op == "mod" or (any(parts) if atom.op == "max" else parts[0] if atom.op == "div" else all(parts))
