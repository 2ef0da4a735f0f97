"""Random calls for GPUs, by which of the kernels that calls may choose, and what the emulator and compilers say of them.

A call follows from its seed alone. Half of them are made by a kernel that only calls of other sizes ask for: tiles, shares of
sums and of rows, indices of 64 bits, strict numerics.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from gpu_calls import KINDS, Array, Called, NotPossible
from gpu_programs import Rng, one_of

from polyop.compiler import Compiled, compile_op
from polyop.ir.errors import PolyopError
from polyop.ir.module import Binary, Module
from polyop.ir.options import Options
from polyop.ir.target import Target, target
from polyop.known import Known, on_gpu, seen_as
from polyop.rewrite.regimes.block_regimes import HELD
from polyop.rewrite.regimes.blocktiles import TILES, WIDEST
from polyop.rewrite.regimes.questions import Questions
from polyop.runtime import amdgcn, emulated, nvrtc
from polyop.runtime import arrays as memory
from polyop.runtime.bind import Bound
from polyop.runtime.launching import fits
from polyop.runtime.usage import usage

TRIES = 20
TOOLS = {"cuda": nvrtc, "hip": amdgcn}
ANGLES = re.compile(r"\bpop_(sin|cos|tan)\(")
"""Functions that keep the digits of a large angle in an array, which lies in local memory."""


@dataclass(frozen=True, eq=False)
class Hunted:
    """A call, how it was compiled, and the fault that was found; none if that is empty."""

    called: Called
    options: Options
    made: Compiled | None
    fault: str

    def __str__(self) -> str:
        mine, usual = asdict(self.options), asdict(Options(special=False))
        said = ", ".join(f"{n}={x!r}" for n, x in mine.items() if x != usual[n])
        return f"{self.called.name} with Options({said}): {self.fault or 'right'}"


def forced(q: Questions, sizes: dict[str, int], options: Options, t: Target, rng: Rng) -> Options:
    """What calls of other sizes choose."""
    if rng.random() < 0.4:
        return options
    new: dict[str, Any] = {"huge": rng.random() < 0.2}
    if q.tile and q.sides:
        sides = (int(one_of(rng, TILES)), int(one_of(rng, (*TILES, *([WIDEST] if t.arch == "sm_90a" else [])))))
        new["tile"] = sides
        if rng.random() < 0.4:
            new["lines"] = tuple(cut(side, len(e), rng) for side, e in zip(sides, (q.sides.rows, q.sides.columns), strict=True))
        else:
            new["lines"] = ()
    if options.numerics != "strict":
        shares = tuple((x.target, 1 << int(rng.integers(4, 8))) for x in q.sums if not x.places and rng.random() < 0.5)
        new |= {"shares": options.shares if options.ones else shares}
        new |= {"split": 1 << int(rng.integers(2, 8))} if q.splits and rng.random() < 0.5 else {}
    if q.scans:
        new["apart"] = rng.random() < 0.5
    kept = dict.fromkeys(n for p in q.passes if p.rolled for n in p.rolled.kept if sizes[n] <= HELD[-1])
    if rng.random() < 0.5:
        new["held"] = tuple((n, int(one_of(rng, [m for m in HELD if m >= sizes[n]]))) for n in kept)
    return replace(options, **new)


def cut(side: int, count: int, rng: Rng) -> tuple[int, ...]:
    """Powers of 2, as many as a side has indices, whose product it is; () of one."""
    out = [side]
    for _ in range(min(count, 3) - 1):
        first = 1 << int(rng.integers(0, out[-1].bit_length()))
        out = [*out[:-1], first, out[-1] // first]
    out = [1] * (count - len(out)) + out
    return tuple(out) if any(x > 1 for x in out[:-1]) else ()


@contextmanager
def bugs() -> Iterator[list[str]]:
    """What polyop logs about itself meanwhile."""
    found: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Kept(logging.WARNING)
    logging.getLogger("polyop").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("polyop").removeHandler(handler)


def hunt(kind: str, seed: int, target_name: str, looks: tuple[str, ...] = ("values",), thorough: bool = False) -> Hunted | None:
    """One call, and what came of it; None if no such call was found.

    looks      at "values" that the emulator computes, and the "machine" code that the vendor's compiler makes
    thorough   whether in every order of threads, not in two
    """
    rng = np.random.default_rng([seed, *kind.encode()])
    for _ in range(TRIES):
        try:
            c = KINDS[kind](rng)
        except (PolyopError, NotPossible, ValueError, IndexError, ZeroDivisionError, FloatingPointError):
            continue  # the operator, or what NumPy says of it, is not for these sizes
        return looked_at(c, target(target_name), rng, looks, thorough)
    return None


def looked_at(c: Called, t: Target, rng: Rng, looks: tuple[str, ...], thorough: bool) -> Hunted:
    merged = Known(c.op).merged(c.bound)
    seen = seen_as(c.bound, merged.flat)
    numerics = one_of(rng, ("fast",) * 8 + ("strict", "tf32"))
    units, options = on_gpu(merged, seen, Options(numerics=numerics), t)
    options = forced(merged.questions, seen.sizes, options, t, rng)
    with bugs() as logged:
        made = compile_op(seen.op, units, t, options)
        if made.module and not fits(made.module.launch, seen.sizes, {n: v.strides for n, v in seen.views.items()}):
            options = replace(options, huge=True)
            made = compile_op(seen.op, units, t, options)
    fault = f"REFUSED, rung {made.rung}: {'; '.join(logged or made.notes)}" if logged or made.rung != "tuned" else ""
    if made.module and "machine" in looks and not fault:
        fault = in_machine_code(made.module)
    if made.module and "values" in looks and not fault:
        fault = in_values(c, seen, made.module, rng, thorough)
        loose = options.numerics == "tf32"  # which rounds operands
        fault = "" if fault.startswith("WRONG") and loose else fault
    return Hunted(c, options, made, fault)


def in_machine_code(m: Module) -> str:
    """What the vendor's compiler says of a kernel, or spills."""
    tool = TOOLS[m.target.partition(":")[0]]
    code, said = tool.compiled(m)
    spilled = [str(u) for u in usage(Binary(m.name, m.target, code, m.signature, m.launch)) if u.spills or u.local]
    if ANGLES.search(m.text):
        spilled = []
    return f"COMPILER: {said}" if said else f"SPILLS: {'; '.join(spilled)}" if spilled else ""


def in_values(c: Called, seen: Bound, m: Module, rng: Rng, thorough: bool) -> str:
    """What the emulator says of a call, or a reference of its results."""
    given = {b.name: memory.as_numpy(seen.views[b.name]) for b in m.signature.tensors}
    kinds = emulated.COMPLETIONS[: 2 if m.target.startswith("cuda") else 1]
    ways = [(o, k) for o in emulated.ORDERS for k in kinds]
    copies: dict[str, Array] = {}
    for k in range(len(ways)) if thorough else rng.permutation(len(ways))[:2]:
        copies = {n: a.copy() for n, a in given.items()}
        report = emulated.run(m, seen.sizes, seen.scalars, copies, order=ways[k][0], completion=ways[k][1],
                              seed=1 + int(rng.integers(7)))
        if report.findings or (report.site is not None and not c.outside()):
            return f"FAULT, {ways[k]}: {report}"
        if report.site is not None:
            return ""
    for n in copies.keys() & {x.name for x in seen.op.outputs}:
        given[n][...] = copies[n]
    value = c.bound.value
    said = c.wrong(tuple(np.asarray(x) for x in (value if isinstance(value, tuple) else (value,))))
    return f"WRONG: {said}" if said else ""
