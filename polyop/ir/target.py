"""Targets: hardware as rows of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.errors import fail

LINE = 64
"""Bytes that the caches of a processor take at once, which is the widest of its vectors too."""

PAGE = 4096
"""Bytes of a page of memory: no further does a processor fetch ahead of what it sees read."""

NEAR = 4
"""Lanes up to this many elements apart are picked out of consecutive vectors; a gather takes longer."""

NARROW = 4
"""Rows of the least square that is transposed in registers: four elements are what shuffles exchange most cheaply."""


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What the blocks on one multiprocessor of a GPU share.

    parts       of it, each with its own registers; warps: threads in lock step that each part holds
    registers   of 32 bits for each lane of a part, handed out to warps in multiples of `granule`
    shared      bytes of shared memory, of which each block takes `reserved` for the system
    blocks      at most
    """

    parts: int
    warps: int
    registers: int
    granule: int
    shared: int
    reserved: int
    blocks: int

    def room(self, blocks: int = 1) -> int:
        """Bytes of shared memory for each of so many blocks at one time."""
        return self.shared // blocks - self.reserved


@dataclass(frozen=True, slots=True)
class Hints:
    """How far ahead of what it reads once a processor is asked for more, and where that comes to.

    cache   which one, counted from 1
    alone   bytes ahead in rows that are read one by one
    beside  bytes ahead in each of several whole tensors that are read side by side
    rows    bytes ahead in rows of a matrix that are read side by side, if they are short
    long    the same, if they are long
    again   cache to which the rows of the next turn come while a few are read for the second time; 0: these are asked for again
    kept    how many these are at most
    least   bytes of a tensor from which what comes in `alone`, `beside` and in rows does; 0: it always does
    added   bytes of a tensor from which its rows come in tiles that only add them up, if they are short; 0: they always do
    single  bytes of a vector up to which rows that are multiplied with it come one by one, if they exceed L2; 0: they never do
    panels  rows at most of a product whose tiles ask for the next tile's columns, which they read where these lie; 0: none do
    dots    rows at most of a product that are dot products in place where both operands lie along the sum; 0: one tile's
    turns   turns early that rows come, a few of which are read side by side, piece by piece; 0: further on in the same rows does
    """

    cache: int = 1
    alone: int = 4096
    beside: int = 1024
    rows: int = 4096
    long: int = 1024
    again: int = 0
    kept: int = 8
    least: int = 0
    added: int = 0
    turns: int = 0
    single: int = 0
    panels: int = 0
    dots: int = 0


USUAL_HINTS = Hints()


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of machine.

    name           what a user writes: "x86:x86-64-v3", "cuda:sm_80", "hip:gfx942"
    family         "x86", "cuda" or "hip"
    arch           what the family's compiler calls it
    features       LLVM features on top of `arch`, as "+avx512f,-amx"; empty: what `arch` implies
    implied        those that `arch` implies and something here asks for
    vector_bytes   width of a vector register; registers: how many
    masks          whether vector loads and stores take masks at no cost
    fma_chains     latency x ports: independent accumulators that keep the FMA units busy
    l1, l2, l3     bytes of cache one core can count on
    l2_ways        lines that fall on each other which L2 holds: those that lie a multiple of `l2 / l2_ways` bytes apart
    stream_bytes   outputs larger than this are worth writing past the caches
    stays          bytes of all tensors of a call from which such outputs are, if they are written as their operands are read:
                   fewer stay in the last cache; 0: any are
    pages_meet     whether such outputs are not, if tiles write rows that lie whole pages apart, which meet on their way to memory
    hints          how it is asked for what it will read
    slow           instructions that it has, and that take longer than what does without them
    string_bytes   rows of at least so many bytes are copied by one string instruction; 0 where that is slow
    across         whether rows that are copied in another order are so block by block, which was measured to pay
    warp           threads that run in lock step; 0 on a CPU
    multi          what its multiprocessors have; None on a CPU
    copies         whether copies to the shared memory of a block go on by themselves
    boxes          whether an engine copies boxes of tensors there
    answers        whether what lanes answer to a question lies in scalar registers, a bit for each lane
    spare          whether a thread has registers beside those that it computes with, which take what these have no room for
    """

    name: str
    family: str
    arch: str
    features: str = ""
    vector_bytes: int = 16
    registers: int = 16
    masks: bool = False
    fma_chains: int = 8
    l1: int = 32 << 10
    l2: int = 1 << 20
    l3: int = 16 << 20
    l2_ways: int = 8
    stream_bytes: int = 8 << 20
    stays: int = 0
    pages_meet: bool = False
    hints: Hints = USUAL_HINTS
    slow: frozenset[str] = frozenset()
    string_bytes: int = 0
    across: bool = False
    warp: int = 0
    multi: Multiprocessor | None = None
    copies: bool = False
    boxes: bool = False
    answers: bool = False
    spare: bool = False
    implied: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """By name alone: calls of new sizes look things up by target, and twenty fields would take longer than what they find."""
        return hash(self.name)

    def lanes(self, bytes_: int) -> int:
        """How many elements of `bytes_` each fit into a vector register."""
        return max(1, self.vector_bytes // bytes_)

    def has(self, feature: str) -> bool:
        """Whether `features` or `implied` says so; what else `arch` implies is not looked up."""
        return feature in self.implied or f"+{feature}" in self.features.split(",")


# https://docs.nvidia.com/cuda/cuda-c-programming-guide: technical specifications per compute capability
_AMPERE = Multiprocessor(4, 16, 512, 8, 164 << 10, 1 << 10, 32)
_HOPPER = Multiprocessor(4, 16, 512, 8, 228 << 10, 1 << 10, 32)
# https://llvm.org/docs/AMDGPUUsage.html and AMD's manuals of the instruction sets: a compute unit, or two of RDNA together
_CDNA = Multiprocessor(4, 8, 512, 8, 64 << 10, 0, 32)
_RDNA = Multiprocessor(4, 16, 1536, 24, 128 << 10, 0, 32)

ROWS = (
    # https://gitlab.com/x86-psABIs/x86-64-ABI: the micro-architecture levels
    Target("x86:x86-64-v4", "x86", "x86-64-v4", vector_bytes=64, registers=32, masks=True, fma_chains=8, l1=48 << 10, l2=1 << 20,
           implied=("avx512f", "avx512bw")),
    # https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html: AMX, VNNI and AVX512-BF16
    Target("x86:sapphirerapids", "x86", "sapphirerapids", "+avx512vl,+avx512vnni,+avx512bf16,+amx-tile,+amx-bf16,+amx-int8",
           vector_bytes=64, registers=32, masks=True, fma_chains=8, l1=48 << 10, l2=2 << 20),
    Target("x86:x86-64-v3", "x86", "x86-64-v3", vector_bytes=32, registers=16, fma_chains=10, l1=32 << 10, l2=512 << 10,
           across=True, implied=("avx2",)),
    Target("x86:x86-64-v2", "x86", "x86-64-v2", vector_bytes=16, registers=16, fma_chains=8, l1=32 << 10, l2=256 << 10),
    # https://docs.nvidia.com/cuda/cuda-c-programming-guide: compute capabilities
    Target("cuda:sm_80", "cuda", "sm_80", warp=32, registers=255, multi=_AMPERE, copies=True),
    Target("cuda:sm_90", "cuda", "sm_90", warp=32, registers=255, multi=_HOPPER, copies=True, boxes=True),
    Target("cuda:sm_90a", "cuda", "sm_90a", warp=32, registers=255, multi=_HOPPER, copies=True, boxes=True),
    # https://llvm.org/docs/AMDGPUUsage.html: processors
    Target("hip:gfx90a", "hip", "gfx90a", warp=64, registers=256, multi=_CDNA, answers=True, spare=True),
    Target("hip:gfx942", "hip", "gfx942", warp=64, registers=256, multi=_CDNA, answers=True, spare=True),
    Target("hip:gfx1100", "hip", "gfx1100", warp=32, registers=256, multi=_RDNA, answers=True),
)
BY_NAME = {t.name: t for t in ROWS}

HINTS = {"znver3": Hints(beside=256, long=256, again=2),
         "znver4": Hints(cache=2, alone=1024, beside=1024, rows=8192, long=2048, again=2, kept=16,
                         least=24 << 20, added=40 << 20, turns=2, single=8 << 10, panels=96,
                         dots=24)}
"""Of processors, by LLVM's names, that were measured to want others than a Xeon (docs/x86.md, "Rows from memory")."""

STAYS = {"znver4": 20 << 20}
"""`Target.stays` of processors, by the same names: what reliably stays of the 32 MB that a few cores of Zen 4 share."""

PAGES_MEET = frozenset({"znver3"})
"""Processors, by the same names, that were measured to write rows whole pages apart past the caches in twice the time."""

SLOW = dict.fromkeys(("sapphirerapids", "emeraldrapids", "graniterapids", "rocketlake"), frozenset({"vdpbf16ps"}))
"""`Target.slow` of processors, by the same names, where they have no matrix tiles. An Emerald Rapids was measured: 0.77 ns, while
a multiply-add of f32, which does half of that, takes 0.19. LLVM takes one whose model a virtual machine hides for a `rocketlake`.
"""

ACROSS = frozenset({"znver4", "znver5"})
"""Processors of AVX-512, by the same names, that copy rows in another order block by block: Zen 4 was measured, 5 is like it."""


def target(name: str) -> Target:
    """The row called `name`; "x86" alone means this machine and is resolved by `runtime/cpu.py`.

    Raises UserError, if there is no such row.
    """
    if name not in BY_NAME:
        raise fail("E901", f"`{name}` is no target", hint=_meant(str(name)))
    return BY_NAME[name]


def _meant(name: str) -> str:
    """What is told to somebody who asked for `name`, which is no target."""
    whole = [t.name for t in ROWS if t.arch == name]
    if whole:
        return f"say `{whole[0]}`"
    same = [t for t in ROWS if t.family == "cuda" and t.name == f"{name[:-1]}0"]  # of one generation
    if same:
        return f"what is made for {same[0].name} runs on {name.partition(':')[2]}, too"
    near = [t.name for t in ROWS if t.family == name.partition(":")[0]]
    return f"say which: {', '.join(near)}" if near else f"targets are x86 (this machine), {', '.join(sorted(BY_NAME))}"
