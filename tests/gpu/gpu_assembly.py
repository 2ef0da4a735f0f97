"""AMD's assembly as a graph: which instructions can follow each other on some way through a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable

LOADS = r"(global_load_dwordx4|global_load_b128|buffer_load_dwordx4|buffer_load_b128) "
READS = r"ds_(read|load)_b128 "
WRITES = r"ds_(write|store)\S*b(64|128) "
PRODUCTS = r"v_(mfma|wmma)_"
WAITS = r"s_waitcnt.*vmcnt\("


def instructions(text: str) -> list[str]:
    """Instructions and labels of a kernel in order, without directives and remarks."""
    lines = (x.split(";")[0].strip() for x in text.splitlines())
    return [x for x in lines if x and (x.startswith(".LBB") or not x.startswith("."))]


def places(lines: list[str], pattern: str) -> list[int]:
    return [n for n, x in enumerate(lines) if re.match(pattern, x)]


def count(lines: Iterable[str], pattern: str) -> int:
    return sum(re.match(pattern, x) is not None for x in lines)


def most(lines: list[str], what: str, goal: int, never: str) -> int:
    """The most instructions `what` on one way to instruction `goal` on which there is none like `never`, and no loop."""
    labels = {x[:-1]: n for n, x in enumerate(lines) if x.endswith(":")}

    def follow(n: int) -> list[int]:
        word = lines[n].split()
        if word[0] == "s_endpgm" or re.match(never, lines[n]):
            return []
        to = [labels[word[1]]] if re.match(r"s_c?branch", word[0]) and word[1] in labels else []
        return to if word[0] == "s_branch" else [*to, *([n + 1] if n + 1 < len(lines) else [])]

    best: dict[int, int] = {goal: 0}  # -1: no way
    for start in places(lines, what):
        todo: list[tuple[int, bool]] = [(start, False)]
        going: set[int] = set()
        while todo:
            n, done = todo.pop()
            if done:
                ways = [best[m] for m in follow(n) if best.get(m, -1) >= 0]
                best[n] = max(ways) + (re.match(what, lines[n]) is not None) if ways else -1
                going.discard(n)
            elif n not in best and n not in going:
                going.add(n)
                todo += [(n, True), *((m, False) for m in follow(n))]
    return max(best.values())
