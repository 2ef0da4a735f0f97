"""Frozen: an operator some of whose inputs are given once and for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

from polyop.arguments import Pick, picks
from polyop.artefact import Artefact
from polyop.ir.dtypes import DTYPES
from polyop.ir.interface import Interface
from polyop.ir.options import Options, options_of
from polyop.operator import Operator
from polyop.runtime import arrays, choose
from polyop.runtime.arrays import refuse


class Frozen:
    """What `Operator.freeze` returns: it is called with all other arguments, by position in their order, or by name."""

    def __init__(self, operator: Operator, given: Mapping[str, Any]) -> None:
        if not given:
            raise refuse("E601", f"no input of `{operator.interface.name}` is given to be frozen", str(operator.interface))
        self.operator = operator
        self.given = {n: _array(operator.interface, n, v) for n, v in given.items()}
        interface = operator.interface
        self._inner = operator.with_frozen(tuple(p.name_in_op for p in interface.parameters if p.name in self.given))
        self._plain = tuple(p.name for p in interface.parameters if not p.by_name)
        self._frozen = tuple(self.given.values())
        self._ways: dict[int, tuple[Pick, dict[str, Any]]] = {}
        self.__name__ = interface.name
        self.__doc__ = interface.docstring

    def __repr__(self) -> str:
        return f"<polyop {self.operator.interface} with {', '.join(self.given)} frozen>"

    def __deepcopy__(self, _: Any) -> Frozen:
        return self  # as an operator does

    def __reduce__(self) -> tuple[Any, ...]:
        return Frozen, (self.operator, self.given)

    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        """Run on the other arguments; `out` as of any operator.

        Raises  CallError, if they do not fit.
        """
        if keywords and keywords.keys() & self.given.keys():
            raise refuse("E601", f"`{min(keywords.keys() & self.given.keys())}` of `{self.__name__}` is frozen, and given again",
                         "freeze the operator anew for another value")
        way = self._ways.get(len(args))
        if way is None:
            way = self._ways[len(args)] = self._way(len(args))
        pick, rest = way
        return self._inner(*pick((*args, *self._frozen)), **({**rest, **keywords} if rest else keywords))

    def freeze(self, /, **given: Any) -> Frozen:
        """The same with more inputs frozen, or with others in the place of some."""
        return Frozen(self.operator, {**self.given, **given})

    def compile(self, target: str | None = None, options: Options | None = None, **how: Any) -> Artefact:
        """As `Operator.compile`: the kernel for calls of it, which are made with all other arguments."""
        mine = self._inner.options
        asked = mine if options is None else replace(options_of(options), frozen=mine.frozen)
        made = self._inner.compile(target, options=asked, **how)
        if made.operator is self._inner:
            return replace(made, operator=self)
        assert isinstance(made.operator, Operator)
        return replace(made, operator=Frozen(made.operator, self.given))

    @property
    def kept_bytes(self) -> int:
        """How much memory holds what was made of the frozen inputs so far."""
        return self._inner.kept_bytes

    def _way(self, count: int) -> tuple[Pick, dict[str, Any]]:
        """How `count` arguments by position become the operator's: what takes these out of them and the frozen ones; the rest."""
        others = [n for n in self._plain if n not in self.given]
        if count > len(others):
            takes = f"{len(others)} argument{'' if len(others) == 1 else 's'}"
            raise refuse("E601", f"`{self.__name__}` with {', '.join(self.given)} frozen takes {takes} by position, got {count}")
        pool = [*others[:count], *self.given]
        known = frozenset(pool)
        by_position = tuple(takewhile(lambda n: n in known, self._plain))
        return picks(tuple(map(pool.index, by_position))), {n: v for n, v in self.given.items() if n not in by_position}


def _array(interface: Interface, name: str, value: Any) -> Any:
    """What an input is frozen as.

    Raises  CallError, if it is no input that keeps its values, or `value` no array.
    """
    p = interface.parameter(name)
    if p is None or p.kind != "tensor":
        what = f"no input `{name}`{choose.meant(name, interface)}" if p is None else f"`{name}`, which is no array"
        raise refuse("E601", f"`{interface.name}` has {what}, so it cannot be frozen")
    if p.inout:
        raise refuse("E601", f"`{interface.name}` changes `{name}` in place, so it cannot be frozen")
    if arrays.is_torch(value):
        value = value.detach()  # no gradient goes through what is frozen
    v, rank = arrays.view(value, name, DTYPES.get(p.dtype)), len(p.dims)
    if p.dtype in DTYPES and v.dtype != DTYPES[p.dtype]:
        raise refuse("E602", f"`{name}` is {p.dtype}, got {v.dtype}")
    if "..." not in p.dims and len(v.shape) != rank:
        raise refuse("E603", f"`{name}` has {rank} dimension{'' if rank == 1 else 's'} [{', '.join(p.dims)}], got {len(v.shape)}")
    return value
