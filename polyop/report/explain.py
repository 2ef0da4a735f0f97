"""Why a kernel is the way it is, as plain text: work, statements, loops, fusion, strategies, layouts and proofs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Protocol

from polyop.ir.module import Binary, Proof
from polyop.ir.op import Op, Param, Tensor
from polyop.ir.options import Layout
from polyop.ir.target import Target
from polyop.ir.words import users_words
from polyop.report.work import Count, work
from polyop.rewrite.regimes.block_regimes import kinds_on_gpus
from polyop.rewrite.regimes.regimes import kinds
from polyop.runtime.usage import usage

_LINES = 80  # of loops that are shown


class Explained(Protocol):
    """What is known about a compiled operator; `trace` has the text of each stage, `calls` the sizes it is for, if not all."""

    @property
    def op(self) -> Op: ...
    @property
    def target(self) -> Target: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def calls(self) -> Mapping[str, int]: ...
    @property
    def trace(self) -> Mapping[str, str]: ...
    @property
    def proofs(self) -> tuple[Proof, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def binary(self) -> Binary | None: ...


def explain(made: Explained, sizes: Mapping[str, int] | None = None) -> str:
    """All there is to say about `made`; with `sizes`, the formulas are also worked out for them."""
    sections = (
        ("operator", list(_operator(made))),
        ("work", list(_work(made, sizes or {}))),
        ("statements", [f"S{k}  {s}" for k, s in enumerate(made.op.steps)]),
        ("statements of the kernel", list(_rewritten(made))),
        ("order and fusion", list(_fusion(made))),
        ("strategies", [n for n in made.notes if _is_choice(n)]),
        ("loops", list(_loops(made))),
        ("temporaries", list(_temporaries(made))),
        ("made of frozen inputs in the first call, and kept", list(_lasting(made.binary))),
        ("binary", list(_binary(made.binary))),
        ("proofs", list(_proofs(made.proofs))),
    )
    return "\n\n".join("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in sections if lines)


def _operator(made: Explained) -> Iterator[str]:
    op = made.op
    yield str(op).splitlines()[0].removesuffix(" {")
    if op.doc:
        yield from op.doc.splitlines()
    yield from (f"{users_words(op, x.name)}: {' '.join(x.doc.split())}" for x in _documented(op))
    for fact in op.facts:
        yield f"is for calls in which {fact}" if made.calls else f"needs {fact}, which every call is checked for"
    units = [f"{n} (dimension {d})" for n, d in made.layout.units if d is not None]
    free = [n for n, d in made.layout.units if d is None]
    yield f"target {made.target.name}; every size stays a variable"
    if made.calls:
        yield f"what calls with {', '.join(f'{n} = {v}' for n, v in made.calls.items())} get, and others of their sort"
    if units:
        yield f"unit stride in {', '.join(units)}; all other strides are run-time values"
    if free:
        yield f"no unit stride in {', '.join(free)}"
    yield "a kernel of their own, when they first come, get calls with another dtype, const or order of strides, and calls"
    yield from (f"  {kind}" for kind in (kinds(op) if made.target.family == "x86" else kinds_on_gpus(op)))


def _lasting(binary: Binary | None) -> Iterator[str]:
    """The memory of a kernel that lasts from call to call."""
    yield from (f"{b.name}: {b.dtype}[{', '.join(str(e) for e, _ in b.dims)}]" for b in binary.signature.work
                if b.lasting) if binary else ()


def _binary(binary: Binary | None) -> Iterator[str]:
    """What a GPU's compiler made of it; a CPU's is not worth a word."""
    taken = usage(binary) if binary else ()
    if binary and taken:
        yield f"{len(binary.code):,} bytes for {binary.target}"
    yield from map(str, taken)


def _documented(op: Op) -> Iterator[Tensor | Param]:
    """Parameters and results with a comment; an `inout` once."""
    updated = {out for _, out in op.updates}
    every: tuple[Tensor | Param, ...] = (*op.inputs, *op.params, *op.outputs)
    for x in every:
        if x.doc and x.name not in updated:
            yield x


def _work(made: Explained, sizes: Mapping[str, int]) -> Iterator[str]:
    w = work(made.op)
    known = set(made.op.sizes) <= set(sizes)

    def line(title: str, n: Count, unit: str) -> str:
        shown = f"{title}: {n} {unit}"
        return shown + (f"  = {_scaled(n.value(sizes))}" if known else "")

    yield line("arithmetic", w.operations, "operations")
    for name, n in w.functions:
        yield line(name, n, "calls")
    yield line("read", w.reads, "bytes of inputs, if each element is fetched once")
    yield line("written", w.writes, "bytes of results")


def _scaled(n: int) -> str:
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)


def _fusion(made: Explained) -> Iterator[str]:
    lines = [x for x in made.trace.get("schedule", "").splitlines() if not x.startswith("note:")]
    if not lines:
        yield "no loops: the operator is evaluated element by element, since no rung of the ladder could do better"
    yield from lines
    if lines:
        yield "(a group in [ ] shares the loops before its colon; x* reduces over x; x! runs in order; one line after the other)"
    yield from (n for n in made.notes if not _is_choice(n))


def _is_choice(note: str) -> bool:
    """Whether a note says which strategy a group got, rather than what was refused."""
    return bool(re.match(r"^\[.*\]: (?!not )", note))


def _rewritten(made: Explained) -> Iterator[str]:
    """What the S's of loops and strategies are, if a rewrite of the operator made other ones than the text has."""
    mine = re.findall(r"^(S\d+) \(\w+\)  (.*)$", made.trace.get("scop", ""), re.MULTILINE)
    asked = [(f"S{k}", f"{s.target} ") for k, s in enumerate(made.op.steps)]
    if len(mine) != len(asked) or any(n != name or not x.startswith(to) for (n, x), (name, to) in zip(mine, asked, strict=True)):
        yield from (f"{name}  {text}" for name, text in mine)


def _loops(made: Explained) -> Iterator[str]:
    schedule = made.trace.get("schedule", "")
    lines = [x[2:] for x in made.trace.get("loops", "").splitlines()[1:] if re.match(r"\s+(for|if|else)\b", x)]
    inside: list[tuple[int, bool]] = []  # depth and whether parallel, of each loop around
    for n, x in enumerate(lines[:_LINES]):
        depth = len(x) - len(x.lstrip())
        inside = [p for p in inside if p[0] < depth]
        loop = re.match(r"\s*for (\w+) in ", x)
        why = _why(loop.group(1), x, schedule, any(p for _, p in inside), _shares(lines[n:])) if loop else ""
        yield x + (f"   {why}" if why else "")
        inside.append((depth, "(parallel)" in x))
    if lines:
        yield "(lanes are the elements of vectors, rows are unrolled; both run in lock step)"
    if len(lines) > _LINES:
        yield f"... and {len(lines) - _LINES} lines more, in the stage `loops`"


def _shares(lines: list[str]) -> bool:
    """Whether there is a parallel loop inside the first of `lines`."""
    depth = len(lines[0]) - len(lines[0].lstrip())
    inside = takewhile(lambda x: len(x) - len(x.lstrip()) > depth, lines[1:])
    return any("(parallel)" in x for x in inside)


def _why(index: str, line: str, schedule: str, in_parallel: bool, shares: bool) -> str:
    """Why a loop is of the kind it is."""
    if "(parallel)" in line:
        return "- iterations share nothing: threads may take them in any order"
    if "(lanes" in line or "(rows" in line:
        return ""
    base = index.split("_")[0]
    if re.search(rf"\b{re.escape(base)}!", schedule):
        return "- serial: each iteration needs the one before"
    if re.search(rf"\b{re.escape(base)}\*", schedule):
        return "- serial: it adds up a reduction"
    if in_parallel:
        return "- serial inside a parallel loop"
    return "- serial: threads share out a loop inside" if shares else "- serial inside a serial loop"


def _temporaries(made: Explained) -> Iterator[str]:
    """What became of each temporary: memory, a piece of memory, or nothing."""
    held = dict(re.findall(r"^  (\w+): (.*) work\b", made.trace.get("loops", ""), re.M))
    if "loops" not in made.trace:
        return
    found = [re.match(r"(\w+) takes the memory of (\w+)$", n) for n in made.notes]
    taken = {m[1]: m[2] for m in found if m}
    for name, full in work(made.op).temporaries:
        if name in taken:
            yield f"{name} takes the memory of {taken[name]}, which nothing reads any more then"
        elif name in held:
            yield f"{name} is kept in memory as {held[name]} (in full it has {full} bytes)"
        else:
            pieces = [f"{n}: {t}" for n, t in held.items() if n.startswith(f"{name}_")]
            where = f"only {', '.join(pieces)} is kept" if pieces else "it lives in registers"
            yield f"{name} is never stored in full: {where}"


def _proofs(proofs: tuple[Proof, ...]) -> Iterator[str]:
    for p in proofs:
        yield f"{p}  {p.ms:.1f} ms"
    if proofs:
        spent = sum(p.ms for p in proofs)
        yield f"for all sizes at once, on the loops above and on what they are rewritten to; {spent:.0f} ms in all"
    else:
        yield "nothing was proved"
