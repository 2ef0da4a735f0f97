"""Copies of tiles of which each turn of a serial loop around a contraction needs one, and of those that all its turns need.

    once: Q   once: first K, first V
    t (serial) ( early: next K, to slot (t + 1) mod 2   early: next V    scores: Q, K   ..   sums: V )

What no turn changes is copied once, before the loop. Of what each one changes there are two slots, if there is room: the next
tile is on its way while this turn's is used. With one slot a copy begins as early as its tile is no longer read: those of the
first contraction of a turn behind it, for the next turn; those of others at the beginning of their own:

    t (serial) ( early: this V   scores: Q, K   last: next K   ..   sums: V )

Where copies do not go on by themselves they do the same by way of registers:

    t (serial) ( early: next K to registers, this V to registers   scores: Q, K   last: K from registers
                 ..   first: V from registers   sums: V )
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyop.ir.expr import Affine, Load, affine, names, quasi, substitute
from polyop.poly.blocks.copier import Copier, Copies, copier
from polyop.poly.blocks.staging import Staging
from polyop.poly.build import Builder
from polyop.poly.strategies.roles import iterators_of
from polyop.poly.strides import lower_bound
from polyop.poly.tiles import Band, Coord


def stage_in_turns(b: Builder, s: Staging, n: int, load: Load) -> Copies:
    """Adds the copies of `load`, operand number `n` of a contraction in the loop `s.around`, to what `b` builds.

    Raises  UnsupportedError, if it is not known where that loop begins.
    """
    starts = s.starts(Affine())
    varies = _varies(s, load)
    s = s if varies else replace(s, slots=1)
    c = copier(b, s, n, load)
    now = affine(s.around)
    own = next(q for q in s.own.values() if s.axes[q].names == (s.around,))
    first = lower_bound(s.plan, s.update, own, {q: x for q, x in s.axes.items() if s.around not in x.names})
    found = c.found(_slot(s, now))
    if not varies:
        return Copies((), (), (), found, once=_copied(c, "first", starts, None, Affine()))
    once = _copied(c, "first", _in_turn(s, starts, first), None, _slot(s, first)) if s.ahead else ()
    turn = now + s.ahead
    at, to, label = _in_turn(s, starts, turn), _slot(s, turn), "next" if s.ahead else "this"
    if s.plan.target.copies:
        copies = _copied(c, label, at, first, to)
        return Copies((), (), (), found, once=once, **{"last" if s.slots == s.ahead else "early": copies})
    fetched, put = _by_registers(c, label, at, first, to)
    return Copies(() if s.ahead else (put,), (), (), found, once=once, early=(fetched,), last=(put,) if s.ahead else ())


def slots(s: Staging, load: Load) -> int:
    """How many tiles of `load` there are."""
    return s.slots if not s.around or _varies(s, load) else 1


def _varies(s: Staging, load: Load) -> bool:
    """Whether the turns of the loop around have other tiles of `load`."""
    starts = s.starts(Affine())
    return any(s.around in names(starts[i]) for i in starts.keys() & iterators_of(load))


def _slot(s: Staging, turn: Affine) -> Affine:
    return quasi("mod", turn, affine(s.slots)) if s.slots > 1 else Affine()


def _in_turn(s: Staging, starts: Mapping[str, Affine], turn: Affine) -> dict[str, Affine]:
    return {i: substitute(x, {s.around: turn}) for i, x in starts.items()}


def _copied(c: Copier, label: str, starts: Mapping[str, Affine], first: Affine | None, slot: Affine) -> tuple[Band | str, ...]:
    """The copy to a slot, in the turns from the `first` one on; None: it stands before the loop."""
    if not c.s.plan.target.copies:
        return _by_registers(c, label, starts, first, slot)
    blocks, only = _where(c, first)
    return (c.copied(label, starts, blocks, slot, only=only),)


def _by_registers(c: Copier, label: str, starts: Mapping[str, Affine], first: Affine | None,
                  slot: Affine) -> tuple[Band | str, Band | str]:
    """The same in two steps."""
    (blocks, only), held = _where(c, first), c.held()
    return (c.copied(f"fetch_{label}", starts, blocks, slot, to=held, only=only),
            c.copied(label, starts, blocks, slot, of=held, only=only))


def _where(c: Copier, first: Affine | None) -> tuple[tuple[Coord, ...], tuple[str, ...]]:
    """The coordinates of blocks and turns around a copy, and what is known of them."""
    blocks = c.s.blocks(())
    if first is None:
        return tuple(x for x in blocks if x.name != c.s.around), ()
    return blocks, (f"{c.s.around} >= {first}",)
