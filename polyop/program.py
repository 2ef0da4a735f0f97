"""Text -> Operators: what `polyop.op`, `polyop.load` and `polyop.einsum` do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from polyop import standard
from polyop.dsl import syntax
from polyop.dsl.check import instantiate
from polyop.dsl.interface import interface
from polyop.dsl.names import did_you_mean
from polyop.ir.dtypes import DType
from polyop.ir.errors import fail
from polyop.ir.op import Op
from polyop.ir.options import Layout, Options, options_of
from polyop.ir.span import Source
from polyop.ir.target import Target
from polyop.operator import Operator
from polyop.reading import parse
from polyop.runtime import forks

if TYPE_CHECKING:
    from polyop.compiler import Compiled

LARGEST = 1 << 20  # bytes of a source file; beyond is no program


@dataclass(frozen=True, eq=False)
class Operators:
    """The operators of one text, as attributes: `ops = polyop.load("ops.pop"); ops.matmul(A, B)`."""

    program: syntax.Program
    options: Options

    def __getattr__(self, name: str) -> Operator:
        if name.startswith("__") or self.program.op(name) is None:
            raise AttributeError(f"{self.program.source.name} defines no operator `{name}`"
                                 + did_you_mean(name, list(self)))
        made = operator(self.program, name, self.options)
        self.__dict__[name] = made  # one Operator for each name, so that what it compiled stays
        return made

    def __getitem__(self, name: str) -> Operator:
        return cast(Operator, getattr(self, name))

    def __iter__(self) -> Iterator[str]:
        return (o.name for o in self.program.ops)

    def __dir__(self) -> list[str]:
        return sorted(self)


def op(text: str, name: str | None = None, *, options: Options | None = None) -> Operator:
    """The operator that `text` defines; `name` says which, if it defines several.

    Raises UserError, if the text is wrong.
    """
    if not isinstance(text, str):
        raise fail("E101", f"the text of an operator is a str, got a {type(text).__name__}")
    program = parse(Source("<string>", text))
    names = [o.name for o in program.ops]
    if name is None:
        if len(names) != 1:
            what = "defines no operator" if not names else f"defines {', '.join(names)}"
            raise fail("E101", f"the text {what}; expected exactly one", hint="give a `name`, or use `polyop.load`")
        name = names[0]
    return operator(program, name, options_of(options))


def load(path: str | Path, *, options: Options | None = None) -> Operators:
    """The operators of a `.pop` file; `polyop.load("linalg")` is that file of the standard library.

    Raises UserError, if there is no such file or its text is wrong.
    """
    file = Path(path)
    if not file.suffix and not file.exists() and f"{file}.pop" in standard.texts():
        return Operators(standard.program(f"{file}.pop"), options_of(options))
    return Operators(parse(read(file)), options_of(options))


def read(file: Path) -> Source:
    """The text of a file. Raises UserError, if it cannot be read or is no text."""
    try:
        with file.open("rb") as f:
            data = f.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise fail("E102", f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    return decoded(str(file), data)


def decoded(name: str, data: bytes) -> Source:
    """The text in `data`, the first bytes of what `name` holds. Raises UserError, if it is too long or no text."""
    if len(data) > LARGEST:
        raise fail("E102", f"{name} is longer than {LARGEST} bytes, and so no program")
    try:
        return Source(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise fail("E102", f"{name} is no text: byte {error.start} is not UTF-8") from None


def library(name: str, *, options: Options | None = None) -> Operator:
    """An operator of the standard library."""
    if name not in standard.index():
        raise fail("E201", f"the library has no operator `{name}`" + did_you_mean(name, list(standard.index())))
    return operator(standard.alone(name), name, options_of(options))


def operator(program: syntax.Program, name: str, options: Options, target: str = "x86") -> Operator:
    """The Operator for one definition; it is instantiated, and compiled, when it is called."""
    make = maker(program, name)
    return Operator(interface(program, name), lambda c: make(dict(c.dtypes), dict(c.consts), c.rest), compiled, options, target,
                    (again, (program.source.name, program.source.text, name)))


@lru_cache(maxsize=256)
def again(file: str, text: str, name: str, options: Options, target: str) -> Operator:
    """The Operator that another process pickled: one for all that it sends."""
    return operator(parse(Source(file, text)), name, options, target)


def maker(program: syntax.Program, name: str) -> Callable[[Mapping[str, DType], Mapping[str, Any], int | None], Op]:
    """What instantiates one definition: of dtypes, consts, and the rank of `...`."""
    def make(dtypes: Mapping[str, DType], consts: Mapping[str, Any], rank: int | None) -> Op:
        return instantiate(program, name, dtypes=dtypes, consts=consts, rank=rank, library=standard.LIBRARY)
    return make


def compiled(op: Op, layout: Layout, target: Target, options: Options) -> Compiled:
    """The pipeline; isl and the emitters are imported only when a kernel is not found in the cache."""
    with forks.IMPORTS:
        from polyop.compiler import compile_op
        from polyop.runtime.device import Ahead

    if target.family == "x86":
        return compile_op(op, layout, target, options)
    ahead = Ahead(options.numerics)
    made = compile_op(op, layout, target, options, ahead.begin)
    if made.module is None:
        return made
    binary, missing = ahead.assembled(made.module)
    return replace(made, binary=binary, notes=(*made.notes, f"no binary: {missing}") if missing else made.notes)
