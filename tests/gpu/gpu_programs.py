"""Random programs of a few steps: a reduction over reads at any places, under conditions, and what is made of its results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Rng = np.random.Generator
KINDS = ("f32", "f32", "f16", "bf16", "f16", "f64", "i32", "i8", "u8")
WIDE = {"f16": "f32", "bf16": "f32", "i8": "i32", "u8": "i32", "i16": "i32", "u16": "i32", "bool": "i32"}
EXACT = ("{}", "relu({})", "{} * 2", "({0} > 1 ? {0} : 1 - {0})", "abs({})", "min(max({}, -3), 3)")
SMOOTH = (*EXACT, "exp(min({}, 2))", "tanh({})")
FACTS = ("<= 32", "<= 64", "% 8 == 0", ">= 16", "<= 1", "== 17")


def one_of(rng: Rng, of: Any) -> Any:
    return of[int(rng.integers(len(of)))]


def some(rng: Rng, of: Any, least: int, most: int) -> list[str]:
    return [str(x) for x in rng.permutation(list(of))[: rng.integers(min(least, len(of)), min(most, len(of)) + 1)]]


def at(what: Any) -> str:
    return f"[{', '.join(what)}]" if what else ""


@dataclass
class Text:
    """An operator that is being written: `free` counts inputs, `alone` are the sizes that stand alone in some of them."""

    rng: Rng
    kind: str
    header: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    alone: set[str] = field(default_factory=set)
    used: dict[str, None] = field(default_factory=dict)
    count: int = 0

    @property
    def wide(self) -> str:
        return WIDE.get(self.kind, self.kind)

    def named(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def read(self, indices: list[str], plain: bool = False) -> str:
        """A read of a new input at places that depend on these indices, in its wide type."""
        name, dims, places, guarded = self.named("A"), [], [], False
        left = list(indices)
        while left:
            x = left.pop(0)
            e = x.upper()
            self.used |= {e: None}
            how = 0 if plain else int(self.rng.integers(0, 24))
            if how == 1 and left:  # windows
                y, step = left.pop(0), int(one_of(self.rng, (1, 1, 2)))
                self.used |= {y.upper(): None}
                pad = int(self.rng.integers(0, 3))
                guarded |= pad > 0
                dims.append(f"{step}*{e} + {y.upper()}" if step > 1 else f"{e} + {y.upper()}")
                places.append((f"{step}*{x} + {y}" if step > 1 else f"{x} + {y}") + (f" - {pad}" if pad else ""))
            elif how == 2:
                dims.append(e)
                places.append(f"{e} - 1 - {x}")
                self.alone.add(e)
            elif how == 3:
                dims.append(e)
                places.append(f"{x} / {one_of(self.rng, (2, 3, 4, 16))}")
                self.alone.add(e)
            elif how == 4:
                n = one_of(self.rng, (2, 3, 8))
                dims.append(str(n))
                places.append(f"{x} % {n}")
            elif how == 5:
                ids = self.named("ids")
                self.header.append(f"{ids}: i32[{e}]")
                dims.append("V")
                places.append(f"{ids}[{x}]")
                self.alone |= {e, "V"}
            elif how == 6:
                guarded = True
                dims.append(e)
                places.append(f"{x} {one_of(self.rng, ('-', '+'))} {one_of(self.rng, (1, 2, 5))}")
                self.alone.add(e)
            elif how == 7 and not left:  # a diagonal
                dims += [e, e]
                places += [x, x]
                self.alone.add(e)
            else:
                dims.append(e)
                places.append(x)
                self.alone.add(e)
        order = self.rng.permutation(len(dims)) if len(dims) > 1 else range(len(dims))
        self.header.append(f"{name}: {self.kind}{at([dims[d] for d in order])}" if dims else f"{name}: {self.kind}[]")
        e = f"{name}{at([places[d] for d in order])}"
        e = f"({e} else 0)" if guarded else e
        return f"{self.wide}({e})" if self.wide != self.kind else e

    def condition(self, indices: list[str]) -> str:
        near, far, factor = self.rng.integers(0, 4), self.rng.integers(2, 20), self.rng.integers(1, 4)
        if len(indices) < 2:
            return f"{indices[0]} % {far} < 2"
        x, y = some(self.rng, indices, 2, 2)
        return str(one_of(self.rng, (
            f"{y} <= {x}", f"{y} < {x}", f"{x} - {far} < {y} <= {x}", f"{x} - {near} <= {y} < {x} + {far}", f"{x} % {far} < 2",
            f"{y} <= {x} + {near}", f"{factor}*{y} <= {x} + {near}", f"{x} + {y} >= {far}", f"({x} + {y}) % {far} == 0")))

    def where(self, indices: list[str], chance: float = 0.0) -> str:
        self.used |= {x.upper(): None for x in indices}
        parts = [f"{x} in 0:{x.upper()}" for x in indices]
        if indices and self.rng.random() < chance:
            parts += [self.condition(indices) for _ in range(one_of(self.rng, (1, 1, 2)))]
        return f" where {', '.join(parts)}" if parts else ""

    def temporary(self, indices: list[str], letter: str = "T") -> str:
        name = self.named(letter)
        self.lines.append(f"{name}: {self.wide}{at([x.upper() for x in indices])}")
        return f"{name}{at(indices)}"

    def result(self, indices: list[str], kind: str) -> str:
        name = self.named("Y")
        self.results.append(f"{name}: {kind}{at([x.upper() for x in indices])}")
        return f"{name}{at(indices)}"

    def epilogue(self, value: str, kept: list[str]) -> str:
        """Something of a value at the same point."""
        if self.rng.random() < 0.4:
            value = one_of(self.rng, SMOOTH if self.wide in ("f32", "f64") else EXACT).format(value)
        if kept and self.rng.random() < 0.4:
            other = self.read(some(self.rng, kept, 1, len(kept)), plain=self.rng.random() < 0.7)
            value = f"{value} {one_of(self.rng, ('+', '*', '-'))} {other}"
        return value

    def reduced(self, every: list[str], kept: list[str], terms: list[str], monoid: str) -> str:
        target = self.temporary(kept)
        mul = " * " if monoid != "+=" or self.rng.random() < 0.9 else " + "
        self.lines.append(f"{target} {monoid} {mul.join(terms)}{self.where(every, 0.25)}")
        return target if monoid == "+=" else f"max(min({target}, 100), -100)"

    def told(self) -> str:
        """What the text says of sizes."""
        known = [*(["V >= 1"] if "V" in self.alone else []), *self.facts]
        return f" where {', '.join(known)}" if known else ""

    def __str__(self) -> str:
        sizes = [n for n in self.used if n not in self.alone]
        head = [*self.header, *(f"s{n}: bool[{n}]" for n in sizes)]
        body = "\n  ".join(self.lines)
        return f"op f({', '.join(head)}) -> ({', '.join(self.results)}){self.told()} {{\n  {body}\n}}"


def text(rng: Rng) -> str:
    """An operator `f`: a reduction with rows `m o`, columns `n p` and a batch `b` over `k l`, and something of its result."""
    t = Text(rng, str(one_of(rng, KINDS)))
    m, n, k, b = (list(x[: rng.integers(0, most + 1)]) for x, most in (("mo", 2), ("np", 2), ("kl", 2), ("b", 1)))
    m = m if m or n else ["m"]
    kept = some(rng, m + n + b, 9, 9)
    monoid = str(one_of(rng, ("+=",) * 7 + ("max=", "min=")))
    terms = [t.read(some(rng, x, 9, 9)) for x in (m + k + b, n + k + b) if x]
    if rng.random() < 0.15:
        terms.append(t.read(some(rng, m + n + k + b, 1, 2)))
    value = t.reduced(m + n + k + b, kept, terms, monoid)
    one_of(rng, (point, point, point, normalised, extreme, running, product, product))(t, value, kept, b)
    if rng.random() < 0.2:
        t.facts += [f"{x} {one_of(rng, FACTS)}" for x in some(rng, t.used, 1, 2)]
    return str(t)


def point(t: Text, value: str, kept: list[str], _: list[str]) -> None:
    """Something of each result."""
    t.lines.append(f"{t.result(kept, t.kind)} = {t.kind}({t.epilogue(value, kept)}){t.where(kept)}")


def normalised(t: Text, value: str, kept: list[str], _: list[str]) -> None:
    """How far it is from the greatest of its row, and twice that in some rows."""
    e, top, total = t.temporary(kept, "e"), t.temporary(kept[:-1], "top"), t.temporary(kept[:-1], "sum")
    t.lines += [f"{x}{t.where(kept)}" for x in (
        f"{e} = {t.epilogue(value, kept)}", f"{top} max= {e}", f"{total} += {e} - {top}",
        f"{t.result(kept, t.kind)} = {t.kind}(({e} - {top}) * ({total} > 0 ? 1 : 2))")]


def extreme(t: Text, value: str, kept: list[str], _: list[str]) -> None:
    """Where the greatest of a row is, and another reduction of the row."""
    t.lines.append(f"{t.result(kept[:-1], 'i64')} argmax= {value}{t.where(kept)}")
    if t.rng.random() < 0.5:
        t.lines.append(f"{t.result(kept[:-1], t.wide)} {one_of(t.rng, ('max=', '+='))} {value}{t.where(kept)}")


def running(t: Text, value: str, kept: list[str], _: list[str]) -> None:
    """A sum, or the greatest, so far."""
    d = int(t.rng.integers(len(kept)))
    target = t.result(kept, t.wide)
    before = target.partition("[")[0] + at([f"{x} - 1" if i == d else x for i, x in enumerate(kept)])
    step = one_of(t.rng, ("({} else 0) + {}", "max(({} else -5), {})")).format(before, value)
    t.lines.append(f"{target} = {step}{t.where(kept)}")


def product(t: Text, value: str, kept: list[str], batch: list[str]) -> None:
    """A product with another operand; half of them of exponentials, as attention's."""
    e, total = t.epilogue(value, kept), ""
    if t.rng.random() < 0.5:
        p, top, total = t.temporary(kept, "e"), t.temporary(kept[:-1], "top"), t.temporary(kept[:-1], "sum")
        power = "exp" if t.wide in ("f32", "f64") else ""
        t.lines += [f"{x}{t.where(kept)}" for x in (f"{top} max= {e}", f"{p} = {power}({e} - {top})", f"{total} += {p}")]
        e = p
    if t.kind in ("f16", "bf16") and t.rng.random() < 0.5:
        e = f"f32({t.kind}({e}))"
    beside = list("qr"[: t.rng.integers(0, 3)])
    other = t.read(some(t.rng, [kept[-1], *beside, *(x for x in batch if x != kept[-1])], 9, 9), plain=t.rng.random() < 0.5)
    results = kept[:-1] + beside
    target = t.temporary(results)
    t.lines.append(f"{target} += {e} * {other}{t.where(kept + beside)}")
    value = f"{target} / max({total}, 1)" if total and t.rng.random() < 0.7 else target
    t.lines.append(f"{t.result(results, t.kind)} = {t.kind}({value}){t.where(results)}")
