"""What an operator is called with: its parameters in the order of the text, before dtypes, ranks and constants are known.

An Op is what one choice of these gives; an Interface is what all of its Ops share, and what a call is first bound to.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.dtypes import DType
from polyop.ir.errors import InternalError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter or result.

    kind      "tensor", "scalar" (a run-time number), "int" (a run-time integer) or "const" (fixed when compiled)
    dtype     the name of a dtype or of a dtype variable; for "int" and an integer "const" it is "i64"
    dims      a tensor's dimensions as they are written; "..." stands for any number of them
    default   the value if the call gives none; None if it must, or if `derived`
    derived   whether a const has a default that follows from other consts, and is left to whoever makes the Op
    by_name   whether it can only be given as `name=value`
    inout     whether the caller's memory also receives the result
    inner     its name in the Op, where that cannot be the user's
    """

    name: str
    kind: str
    dtype: str
    dims: tuple[str, ...] = ()
    default: float | int | bool | None = None
    by_name: bool = False
    inout: bool = False
    doc: str = ""
    inner: str = ""
    derived: bool = False

    @property
    def required(self) -> bool:
        return self.default is None and not self.derived

    @property
    def name_in_op(self) -> str:
        return self.inner or self.name

    def __post_init__(self) -> None:
        if self.kind not in ("tensor", "scalar", "int", "const"):
            raise InternalError(f"parameter {self.name}: no kind {self.kind}")

    def __str__(self) -> str:
        dims = f"[{', '.join(self.dims)}]" if self.dims else ""
        head = {"tensor": "", "scalar": "", "int": "", "const": "const "}[self.kind] + "inout " * self.inout
        dtype = "int" if self.kind == "int" or (self.kind == "const" and self.dtype == "i64") else self.dtype
        return f"{head}{self.name}: {dtype}{dims}" + (f" = {self.default}" if self.default is not None else "")


@dataclass(frozen=True, slots=True)
class Interface:
    """The signature of an operator.

    variables   its dtype variables: (name, what it may be), each of these a key of `dtypes.CLASSES` or a dtype's name
    """

    name: str
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    variables: tuple[tuple[str, tuple[str, ...]], ...] = ()
    doc: str = ""

    @property
    def tensors(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.kind == "tensor")

    @property
    def consts(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.kind == "const")

    @property
    def has_rest(self) -> bool:
        """Whether some tensor has `...` among its dimensions."""
        return any("..." in p.dims for p in self.tensors)

    def parameter(self, name: str) -> Parameter | None:
        return next((p for p in self.parameters if p.name == name), None)

    @property
    def docstring(self) -> str:
        """What the text says about the operator and its parameters, then how to call it."""
        said = {p.name: p for p in (*self.parameters, *self.results) if p.doc}  # an `inout` is both
        lines = [f"{name}: {' '.join(p.doc.split())}" for name, p in said.items()]
        return "\n\n".join(part for part in (self.doc, "\n".join(lines), str(self)) if part)

    def __str__(self) -> str:
        """As it would be written in the language."""
        plain = [str(p) for p in self.parameters if not p.by_name]
        named = [str(p) for p in self.parameters if p.by_name]
        text = ", ".join(plain) + ("; " + ", ".join(named) if named else "")
        known = ", ".join(f"{n}: {' | '.join(c)}" for n, c in self.variables)
        variables = f"<{known}>" if known else ""
        results = f" -> ({', '.join(map(str, self.results))})" if self.results else ""
        return f"op {self.name}{variables}({text}){results}"


@dataclass(frozen=True, slots=True)
class Choice:
    """What makes one Op of an operator: the dtype of each variable, the value of each const, the length of `...`.

    rest   how many dimensions `...` stands for; None if there is none
    """

    dtypes: tuple[tuple[str, DType], ...] = ()
    consts: tuple[tuple[str, float | int | bool], ...] = ()
    rest: int | None = None
