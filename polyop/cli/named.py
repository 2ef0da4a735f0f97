"""What the user names: programs, operators, and values after `-D`; and the options that commands have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from polyop import program, standard
from polyop.artefact import Artefact
from polyop.cli.console import ERR
from polyop.dsl import syntax
from polyop.dsl.names import did_you_mean
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import fail
from polyop.ir.options import NUMERICS as ROUNDING
from polyop.ir.options import RUNGS, Options
from polyop.outcome import Called
from polyop.reading import parse
from polyop.rehearsal import OnDevice, Rehearsal, device_for
from polyop.runtime import cpu
from polyop.runtime.banks import Traffic
from polyop.trial import given_sizes, sort


def opened(file: str, name: str | None) -> tuple[syntax.Program, str]:
    """The program in `file` and the operator meant by `name`; None means the only one."""
    given = source(file)
    return given, meant(given, file, name)


def meant(given: syntax.Program, file: str, name: str | None) -> str:
    """The operator of `given`, the program in `file`, that is meant by `name`."""
    names = [o.name for o in given.ops]
    if name is None and file in names and file in standard.index():
        name = file
    if name is None and len(names) == 1:
        name = names[0]
    if name is None:
        raise fail("E912", f"{given.source.name} defines {', '.join(names) or 'no operator'}; expected one",
                   hint=f"say which: `{file} {names[0]}`" if names else "")
    if given.op(name) is None:
        raise fail("E912", f"{given.source.name} defines no operator `{name}`" + did_you_mean(name, names))
    return name


def source(file: str) -> syntax.Program:
    """The program that `file` names: a path, "-" for the standard input, a file or an operator of the library."""
    if file == "-":
        return parse(program.decoded("<stdin>", sys.stdin.buffer.read(program.LARGEST + 1)))
    path = Path(file)
    if not path.suffix and not path.exists():
        if f"{file}.pop" in standard.texts():
            return standard.program(f"{file}.pop")
        if file in standard.index():
            return standard.program(standard.index()[file])
        known = [*standard.index(), *(f.removesuffix(".pop") for f in standard.texts())]
        raise fail("E102", f"there is no file {file}, and nothing in the library has that name" + did_you_mean(file, known))
    return parse(program.read(path))


def called(given: syntax.Program, name: str, target: str, emulate: bool = False, thorough: bool = False,
           numerics: str = "fast", told: Callable[[tuple[Traffic, ...]], object] | None = None) -> Called:
    """What runs the operator `name` as `target` would: for a GPU that is not here, and with `emulate`, the emulator.

    thorough   whether the emulator tries all orders of threads; told: what is then called with the traffic of shared memory
    """
    asked = Options(numerics=numerics)
    operator, t, make = program.operator(given, name, asked, target), cpu.resolve(target), program.maker(given, name)
    if t.family == "x86" and emulate:
        raise fail("E914", f"`--emulate` is for GPUs; {target} runs here, or not at all")
    if t.family == "x86":
        return operator
    device = None if emulate else device_for(t)
    if device is not None:
        return OnDevice(operator, device)
    return Rehearsal(operator.interface, lambda c: make(dict(c.dtypes), dict(c.consts), c.rest), t, asked, thorough, told)


def defined(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """The values of `-D NAME=VALUE`."""
    out: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier() or not value:
            raise click.BadParameter(f"expected NAME=VALUE, got {text!r}")
        if name in out:
            raise click.BadParameter(f"{name} is given twice")
        out[name] = _value(name, value)
    return out


def _value(name: str, text: str) -> Any:
    if text.endswith(".npy"):
        return _array(name, Path(text))
    if text in DTYPES:
        return text
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise click.BadParameter(f"{name}={text[:60]}: expected a number, true, false, a dtype or a .npy file")


def _array(name: str, path: Path) -> Any:
    try:
        found = np.load(path, allow_pickle=False)
    except OSError as error:
        raise fail("E911", f"cannot read {path} for `{name}`: {error.strerror or error}") from None
    except Exception as error:  # whatever a damaged file makes NumPy raise
        raise fail("E911", f"{path} for `{name}` is no .npy file of numbers: {error}") from None
    if not isinstance(found, np.ndarray):
        raise fail("E911", f"{path} for `{name}` holds several arrays; expected a .npy file with one")
    return found


def ready(file: str, name: str | None, given: dict[str, Any], rank: int | None, target: str, numerics: str,
          rung: str = "tuned") -> Artefact:
    """An operator, compiled for contiguous arguments; with all sizes given, on a GPU, as for calls of these."""
    text, name = opened(file, name)
    operator = program.operator(text, name, Options(numerics=numerics, rung=rung))
    known = sort(operator.interface, given)
    meant_by = operator.choice(known.dtypes, known.consts, rank)
    op = program.maker(text, name)(dict(meant_by.dtypes), dict(meant_by.consts), meant_by.rest)
    sizes = given_sizes(op, operator.interface, known) | {n: v for n, v in known.values.items() if n in op.sizes}
    with ERR.status(f"compiling {name} for {target}"):
        return operator.compile(target, known.dtypes, known.consts, rank, sizes=sizes if sizes.keys() >= {*op.sizes} else None)


FILE = click.argument("file")
NAME = click.argument("name", required=False, metavar="[OPERATOR]")
DEFINE = click.option("-D", "--define", "given", multiple=True, callback=defined, metavar="NAME=VALUE",
                      help="A size, a scalar, a const, a dtype variable, or a .npy file for a tensor.")
RANK = click.option("--rank", type=click.IntRange(0, 16), help="How many dimensions `...` stands for.")
TARGET = click.option("--target", default="x86", show_default=True, help="What to compile for; see `polyop targets`.")
NUMERICS = click.option("--numerics", type=click.Choice(ROUNDING), default=ROUNDING[0], show_default=True,
                        help="How sums and products may be rounded; see `docs/language.md`.")
RUNG = click.option("--rung", type=click.Choice(RUNGS), default="tuned", show_default=True, help="First rung of the ladder.")
