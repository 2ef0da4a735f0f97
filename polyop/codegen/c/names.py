"""Names of a nest -> names of its text, and the removal of those that nothing reads."""

from __future__ import annotations

import re

from polyop.codegen.c.index import Names
from polyop.codegen.gpu.split import kernels, split
from polyop.ir.expr import Affine
from polyop.ir.loops import For, LoopNest, walk

_TAKEN = frozenset(re.findall(r"\w+", """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr continue decltype default
delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace
new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast return short signed sizeof
static struct switch template this throw true try typedef typename union unsigned using virtual void volatile wchar_t while
xor xor_eq item blockIdx blockDim threadIdx gridDim warpSize dim3 size_t int8_t int16_t int32_t int64_t NULL INFINITY NAN main
"""))
"""Words a user's name must not become."""


def c_names(nest: LoopNest) -> Names:
    """A C identifier of its own for each name of the nest, and the name itself wherever C allows that."""
    loops = [n.index for n in walk(nest.body) if isinstance(n, For)]
    wanted = dict.fromkeys([*nest.sizes, *(n for n, _ in nest.scalars), *(b.name for b in nest.buffers), *loops,
                            *(k.name for k in kernels(split(nest)))])
    out = Names()
    out.counts = frozenset((*nest.sizes, *(n.index for n in walk(nest.body) if isinstance(n, For) and n.lower == Affine())))
    taken = set(_TAKEN)
    for name in wanted:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
        if plain[0].isdigit() or plain.startswith(("_", "pop_", "POP_")):
            plain = "v" + plain
        # `X_s0` is the first stride of `X`, `i_count` the number of points of a loop
        while plain in taken or re.search(r"(_s\d+|_count)$", plain):
            plain += "_"
        out[name] = plain
        taken.add(plain)
    return out


_DECLARED = re.compile(r" *const (?:int|pop_i64|pop_u32) (\w+) = [^;]*;$")


def without_unused(lines: list[str]) -> list[str]:
    """`lines` without numbers that nothing reads, about which compilers would warn."""
    while True:
        unused = {at for at, line in enumerate(lines) if (m := _DECLARED.match(line)) and not _is_read(m[1], lines[at + 1:])}
        if not unused:
            return lines
        lines = [line for at, line in enumerate(lines) if at not in unused]


def _is_read(name: str, after: list[str]) -> bool:
    """Whether a line of the same block, or of one inside it, has `name` in its code."""
    word, depth = re.compile(rf"\b{re.escape(name)}\b"), 0
    for line in after:
        code = line.partition("//")[0]
        if word.search(code):
            return True
        depth += code.count("{") - code.count("}")
        if depth < 0:
            return False
    return False
