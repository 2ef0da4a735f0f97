"""Random programs that ask data: positions, conditions and choices, what meets at one element, what is updated, numbers."""

from __future__ import annotations

from gpu_programs import EXACT, Rng, Text, at, one_of, some

DTYPES = ("f16", "bf16", "f32", "f32", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool")
SUMS = ("+=", "+=", "+=", "max=", "min=")
BITS = ("&=", "|=", "^=")


class Asking(Text):
    """An operator that is being written; `known` are its temporaries, with the indices of their dimensions."""

    def __init__(self, rng: Rng) -> None:
        super().__init__(rng, str(one_of(rng, DTYPES)))
        self.known: dict[str, list[str]] = {}
        self.taken: set[str] = set()

    def given(self, letter: str, kind: str, dims: list[str]) -> str:
        """A new input over such sizes."""
        name = self.named(letter)
        self.header.append(f"{name}: {kind}[{', '.join(dims)}]")
        self.alone |= set(dims)
        return name

    def number(self) -> str:
        """A number that the call gives."""
        name = self.named("s")
        self.numbers.append(f"{name}: {one_of(self.rng, ('f32', 'f64') if self.wide in ('f32', 'f64') else ('i32', 'i64'))}")
        return name

    def position(self, indices: list[str]) -> tuple[str, bool]:
        """A place along V that data says, and whether it may be outside."""
        over = some(self.rng, indices, 1, 2)
        dims = [x.upper() for x in over]
        self.used |= dict.fromkeys(dims)
        whole = str(one_of(self.rng, ("i32", "i64", "i16", "u8")))
        self.alone.add("V")
        how = int(self.rng.integers(0, 12))
        if how == 0:  # twice
            inner, outer = self.given("ids", "i32", dims), self.given("ids", "i64", ["V"])
            return f"{outer}[{inner}{at(over)}]", False
        if how == 1:
            return f"min({self.given('ids', 'i32', dims)}{at(over)} + 1, V - 1)", False
        if how == 2:
            return f"max(min(i32({self.given('F', 'f32', dims)}{at(over)} * 3), V - 1), 0)", False
        if how == 3:
            x = f"{self.given('ids', 'i64', dims)}{at(over)}"
            return f"({x} > 1 ? {x} - 1 : {x})", False
        if how < 6:
            return f"{self.given('at', one_of(self.rng, ('i32', 'i64', 'i8')), dims)}{at(over)}", True
        return f"{self.given('ids', whole, dims)}{at(over)}", False

    def asked(self, indices: list[str]) -> str:
        """A read of a new input, or of a temporary, some of whose places data says."""
        places, dims, outside = [], [], False
        for x in indices:
            self.used |= {x.upper(): None}
            if self.rng.random() < 0.4:
                place, may = self.position(some(self.rng, indices, 1, 2))
                outside |= may
                dims.append("V")
            else:
                place = x
                dims.append(x.upper())
            places.append(place)
        e = f"{self.given('A', self.kind, dims)}{at(places)}" if dims else self.read([])
        e = f"({e} else {'false' if self.kind == 'bool' else 1})" if outside and self.rng.random() < 0.7 else e
        return f"{self.wide}({e})" if self.wide != self.kind else e

    def term(self, indices: list[str]) -> str:
        """A value at some of these indices."""
        fits = [n for n, over in self.known.items() if set(over) <= set(indices)]
        if fits and self.rng.random() < 0.5:
            name = str(one_of(self.rng, fits))
            self.taken.add(name)
            return f"{name}{at(self.known[name])}"
        over = some(self.rng, indices, 1, 3)
        if self.rng.random() < 0.5 or self.kind == "bool":
            return self.asked(over)
        return self.read(over, plain=self.rng.random() < 0.7)

    def value(self, indices: list[str]) -> str:
        e = self.term(indices)
        if self.rng.random() < 0.5:
            e = f"{e} {one_of(self.rng, ('*', '*', '+', '-'))} {self.term(indices)}"
        if self.rng.random() < 0.2:
            e = f"{e} * {self.wide}({self.number()})"
        if self.rng.random() < 0.2:
            e = str(one_of(self.rng, EXACT)).format(f"({e})")
        if self.rng.random() < 0.2:
            e = f"({self.question(indices)} ? {e} : {self.term(indices) if self.rng.random() < 0.5 else 2})"
        return e

    def question(self, indices: list[str]) -> str:
        """A condition that data decides."""
        how = int(self.rng.integers(0, 6))
        if how == 0 and len(indices) > 1:
            x, y = some(self.rng, indices, 2, 2)
            g, h = self.given("g", "i32", [x.upper()]), self.given("g", "i32", [y.upper()])
            return f"{g}[{x}] {one_of(self.rng, ('==', '>=', '!='))} {h}[{y}]"
        if how < 3:
            over = some(self.rng, indices, 1, 2)
            e = f"{self.given('B', 'bool', [x.upper() for x in over])}{at(over)}"
            return f"not {e}" if how == 1 else e
        if how == 3:
            return f"{self.term(indices)} <= {self.number()}"
        return f"{self.term(indices)} {one_of(self.rng, ('>', '<', '!='))} 0"

    def ranges(self, indices: list[str], reduces: bool) -> str:
        self.used |= {x.upper(): None for x in indices}
        parts = [f"{x} in 0:{x.upper()}" for x in indices]
        if indices and reduces and self.rng.random() < 0.2:
            parts.append(self.condition(indices))
        if indices and reduces and self.rng.random() < 0.4:
            parts.append(self.question(indices))
        return f" where {', '.join(parts)}" if parts else ""

    def operator(self) -> str:
        if self.wide not in ("f32", "f64") and self.rng.random() < 0.25:
            return str(one_of(self.rng, BITS))
        return str(one_of(self.rng, SUMS))

    def stored(self, over: list[str], last: bool) -> str:
        """A new tensor over these dimensions: a temporary, a result, or what is updated."""
        dims = [x.upper() for x in over]
        if last:
            name = self.named("Y")
            if self.rng.random() < 0.3 and dims:
                self.header.append(f"inout {name}: {self.wide}[{', '.join(dims)}]")
                self.alone |= set(dims)
            else:
                self.results.append(f"{name}: {self.wide}{at(dims)}")
        else:
            name = self.named("T")
            self.lines.append(f"{name}: {self.wide}{at(dims)}")
            self.known[name] = over
        return name

    def step(self, last: bool) -> None:
        """One more tensor, over some indices."""
        pool = [str(x) for x in self.rng.permutation(list("mnb"))]
        kept, summed = pool[: self.rng.integers(0, 4)], list("kl"[: self.rng.integers(0, 3)])
        how = int(self.rng.integers(0, 8))
        if how < 2 and (kept or summed):  # several meet at one element
            every = kept + summed
            place, _ = self.position(every)
            over = some(self.rng, kept, 0, 2)
            value, rest, op = self.value(every), self.ranges(every, True), self.operator()
            dims = ["v", *over] if self.rng.random() < 0.7 else [*over, "v"]
            name = self.stored(dims, last)
            order = [place if x == "v" else x for x in dims]
            self.lines.append(f"{name}{at(order)} {op} {value}{rest}")
        elif how < 5 and kept + summed:
            value, rest, op = self.value(kept + summed), self.ranges(kept + summed, True), self.operator()
            self.lines.append(f"{self.stored(kept, last)}{at(kept)} {op} {value}{rest}")
        elif how == 5 and kept and summed and last:
            value, rest = self.value(kept + summed[:1]), self.ranges(kept + summed[:1], True)
            name = self.named("Y")
            self.results.append(f"{name}: i64{at([x.upper() for x in kept])}")
            self.lines.append(f"{name}{at(kept)} {one_of(self.rng, ('argmax=', 'argmin='))} {value}{rest}")
        else:
            value, rest = self.value(kept), self.ranges(kept, False)
            name = self.stored(kept, last)
            self.lines.append(f"{name}{at(kept)} = {value}{rest}")

    def __str__(self) -> str:
        sizes = [n for n in self.used if n not in self.alone]
        head = ", ".join([*self.header, *(f"z{n}: bool[{n}]" for n in sizes)])
        if "V" in self.alone and not any(place in head for place in ("[V]", "[V,", ", V]", ", V,")):
            self.numbers.append("V: int")
        head += f"; {', '.join(self.numbers)}" if self.numbers else ""
        body = "\n  ".join(self.lines)
        results = f" -> ({', '.join(self.results)})" if self.results else ""
        return f"op f({head}){results}{self.told()} {{\n  {body}\n}}"


def text(rng: Rng) -> str:
    """An operator `f` of one to three tensors."""
    t = Asking(rng)
    for _ in range(one_of(rng, (0, 0, 1, 1, 2))):
        t.step(last=False)
    for _ in range(one_of(rng, (1, 1, 1, 2))):
        t.step(last=True)
    for name in [n for n in t.known if n not in t.taken]:  # what nobody read is a result, too
        over = t.known[name]
        out = t.named("Y")
        t.results.append(f"{out}: {t.wide}{at([x.upper() for x in over])}")
        t.lines.append(f"{out}{at(over)} = {name}{at(over)}{t.ranges([x for x in over if x != 'v'], False)}")
    return str(t)
