"""Text -> Operators: what `polyop.op`, `polyop.load` and `polyop.einsum` do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from polyop import standard
from polyop.ir.dtypes import DType
from polyop.ir.errors import fail
from polyop.ir.interface import Choice, Interface
from polyop.ir.op import Op
from polyop.ir.options import Layout, Options, options_of
from polyop.ir.span import Source
from polyop.ir.target import Target
from polyop.operator import Operator
from polyop.reading import parse
from polyop.recalled import Recalled, keep_names, recalled_names
from polyop.runtime import forks

if TYPE_CHECKING:
    from polyop.compiler import Compiled
    from polyop.dsl import syntax

LARGEST = 1 << 20  # bytes of a source file; beyond is no program


@dataclass(frozen=True, eq=False)
class Operators:
    """The operators of one text, as attributes: `ops = polyop.load("ops.pop"); ops.matmul(A, B)`."""

    _source: Source
    _names: tuple[str, ...]
    _options: Options

    def __getattr__(self, name: str) -> Operator:
        if name.startswith("__") or name not in self._names:
            raise AttributeError(f"{self._source.name} defines no operator `{name}`" + _meant(name, list(self)))
        made = _of_file(self._source, name, self._options)
        self.__dict__[name] = made  # one Operator for each name, so that what it compiled stays
        return made

    def __getitem__(self, name: str) -> Operator:
        return cast(Operator, getattr(self, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __dir__(self) -> list[str]:
        return sorted(self)


def op(text: str, name: str | None = None, *, options: Options | None = None) -> Operator:
    """The operator that `text` defines; `name` says which, if it defines several.

    Raises UserError, if the text is wrong.
    """
    if not isinstance(text, str):
        raise fail("E101", f"the text of an operator is a str, got a {type(text).__name__}")
    source, recalled = Source("<string>", text), Recalled("text", text, name or "")
    if recalled.interface:
        return _of_text(recalled, recalled.interface, source, options_of(options), "x86")
    program = parse(source)
    names = [o.name for o in program.ops]
    if name is None:
        if len(names) != 1:
            what = "defines no operator" if not names else f"defines {', '.join(names)}"
            raise fail("E101", f"the text {what}; expected exactly one", hint="give a `name`, or use `polyop.load`")
        name = names[0]
    return operator(program, name, options_of(options), recalled=recalled)


def load(path: str | Path, *, options: Options | None = None) -> Operators:
    """The operators of a `.pop` file; `polyop.load("linalg")` is that file of the standard library.

    Raises UserError, if there is no such file or its text is wrong.
    """
    file = Path(path)
    if not file.suffix and not file.exists() and f"{file}.pop" in standard.texts():
        source = Source(f"{file}.pop", standard.texts()[f"{file}.pop"])
    else:
        source = read(file)
    names = recalled_names(source.text)
    if names is None:
        names = tuple(o.name for o in _parsed(source).ops)
        keep_names(source.text, names)
    return Operators(source, names, options_of(options))


@lru_cache(maxsize=16)
def _parsed(source: Source) -> syntax.Program:
    """What a file says: once for all of its operators that the cache does not have."""
    return parse(source)


def _of_file(source: Source, name: str, options: Options, target: str = "x86") -> Operator:
    """The operator `name` of a file that has it."""
    recalled = Recalled("text", source.text, name)
    if recalled.interface:
        return _of_text(recalled, recalled.interface, source, options, target)
    return operator(_parsed(source), name, options, target, recalled)


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
    return of_library(name, options_of(options), "x86")


def of_library(name: str, options: Options, target: str) -> Operator:
    """An operator of the standard library for `target`."""
    recalled = Recalled("library", name)
    if recalled.interface:
        return _again(recalled, recalled.interface, lambda: standard.alone(name), options, (again_of_library, (name,)), target)
    if name not in standard.index():
        raise fail("E201", f"the library has no operator `{name}`" + _meant(name, list(standard.index())))
    return operator(standard.alone(name), name, options, target, recalled)


def _meant(name: str, known: list[str]) -> str:
    with forks.IMPORTS:  # as all of `dsl`, when it is needed
        from polyop.dsl.names import did_you_mean

    return did_you_mean(name, known)


def operator(program: syntax.Program, name: str, options: Options, target: str = "x86",
             recalled: Recalled | None = None) -> Operator:
    """The Operator for one definition; it is instantiated, and compiled, when it is called.

    recalled   where it is kept, if it is to be found again without its text
    """
    with forks.IMPORTS:
        from polyop.dsl.interface import interface

    make, found, source = maker(program, name), interface(program, name), program.source
    return Operator(found, lambda c: make(dict(c.dtypes), dict(c.consts), c.rest), compiled, options, target,
                    (again, (source.name, source.text, name)), partial(recalled.keep, found) if recalled else None)


def _of_text(recalled: Recalled, interface: Interface, source: Source, options: Options, target: str) -> Operator:
    """`_again` for an operator of a text that somebody gave."""
    made = again, (source.name, source.text, interface.name)
    return _again(recalled, interface, lambda: _parsed(source), options, made, target)


def _again(recalled: Recalled, interface: Interface, program: Callable[[], syntax.Program], options: Options,
           made: tuple[Callable[..., Operator], tuple[str, ...]], target: str) -> Operator:
    """The Operator that is `recalled`; its `program` is asked for when something else of it is needed than what was kept."""
    def instantiate(c: Choice) -> Op:
        found = recalled.op(c)
        return found if found else maker(program(), interface.name)(dict(c.dtypes), dict(c.consts), c.rest)

    return Operator(interface, instantiate, compiled, options, target, made, partial(recalled.keep, interface))


@lru_cache(maxsize=256)
def again(file: str, text: str, name: str, options: Options, target: str) -> Operator:
    """The Operator that another process pickled: one for all that it sends."""
    return _of_file(Source(file, text), name, options, target)


@lru_cache(maxsize=256)
def again_of_library(name: str, options: Options, target: str) -> Operator:
    """The same of the standard library, whose text was not read."""
    return of_library(name, options, target)


def maker(program: syntax.Program, name: str) -> Callable[[Mapping[str, DType], Mapping[str, Any], int | None], Op]:
    """What instantiates one definition: of dtypes, consts, and the rank of `...`."""
    with forks.IMPORTS:
        from polyop.dsl.check import instantiate

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
