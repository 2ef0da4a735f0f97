"""How long compiling takes: cold with all proofs, from the disk cache, importing, one call, and a thousand shapes.

    python bench/compile.py              a table
    python bench/compile.py --readme     and some of it into the README
    python bench/compile.py --families   transposed convolutions, whose classes are one family each
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLD = ("relu", "silu_mul", "softmax", "layernorm", "rmsnorm", "sum_columns", "matmul", "matmul_nt", "bmm", "conv2d",
        "conv2d_nhwc", "attention", "attention_causal", "lstm", "gru", "jacobi2d", "embedding", "rotary")

ONE = """
import json, sys, time
start = time.perf_counter()
import polyop
imported = time.perf_counter()
import numpy as np
from polyop import standard
from polyop.dsl.check import instantiate
from polyop.dsl.interface import interface
from polyop.program import operator
from polyop.ir.options import Options
from polyop.trial import trial
import polyop.runtime.threads as threads
threads.set_num_threads(1)
name = sys.argv[1]
polyop.op("op warm(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] }")(np.zeros(3, np.float32))
text = standard.program(standard.index()[name])
def make(dtypes, consts, rank):
    return instantiate(text, name, dtypes=dtypes, consts=consts, rank=rank, library=standard.LIBRARY)
call = trial(interface(text, name), make, {}, None, 0, 24)  # larger than what gets a kernel for its very sizes
start_call = time.perf_counter()
operator(text, name, Options())(**call.arguments)
print(json.dumps({"import": 1e3 * (imported - start), "first": 1e3 * (time.perf_counter() - start_call)}))
"""


def once(name: str, cache: Path) -> dict[str, float]:
    """A process that imports polyop and calls one operator."""
    env = {**os.environ, "POLYOP_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", ONE, name], env=env, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


SHOWN = ("relu", "softmax", "matmul", "conv2d_nhwc", "attention", "lstm")


def first_calls() -> dict[str, tuple[float, float]]:
    """Medians of three processes each."""
    found: dict[str, tuple[float, float]] = {}
    print(f"{'first call of':20s} {'cold':>9s} {'warm':>9s}   ms: text to result, with all proofs; from the disk cache")
    imports = []
    for name in COLD:
        cold, warm = [], []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                cold.append(once(name, Path(folder)))
                warm.append(once(name, Path(folder)))
        imports += [x["import"] for x in cold + warm]
        found[name] = float(np.median([x["first"] for x in cold])), float(np.median([x["first"] for x in warm]))
        print(f"{name:20s} {found[name][0]:9.1f} {found[name][1]:9.1f}", flush=True)
    print(f"\nimport polyop: median {np.median(imports):.0f} ms, least {min(imports):.0f} ms")
    return found


def overhead() -> None:
    """A call on eight numbers, beside calling an empty Python function and NumPy."""
    import polyop
    polyop.set_num_threads(1)
    add = polyop.op("op add(X: f32[N], Y: f32[N]) -> (Z: f32[N]) { Z[i] = X[i] + Y[i] }")
    x, y, z = np.ones(8, np.float32), np.ones(8, np.float32), np.ones(8, np.float32)
    add(x, y)
    print("\na call on 8 numbers, in us")
    for title, call in (("polyop, new result", lambda: add(x, y)), ("polyop, out=", lambda: add(x, y, out=z)),
                        ("numpy.add", lambda: np.add(x, y)), ("numpy.add, out=", lambda: np.add(x, y, out=z)),
                        ("nothing", lambda: None)):
        best = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(2000):
                call()
            best.append((time.perf_counter() - start) / 2000)
        print(f"  {title:20s} {1e6 * min(best):6.2f}")


def thousand_shapes() -> None:
    """One operator, a thousand random shapes: how many kernels, and how long a new shape takes."""
    import polyop
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["POLYOP_CACHE_DIR"] = folder
        mm = polyop.op("op shapes(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }")
        worst, times = 0.0, []
        for k, (m, n, d) in enumerate(rng.integers(1, 200, (1000, 3))):
            a, b = rng.standard_normal((m, d), np.float32), rng.standard_normal((d, n), np.float32)
            start = time.perf_counter()
            c = mm(a, b)
            if k:
                times.append(time.perf_counter() - start)
            want = a.astype(np.float64) @ b
            worst = max(worst, float(np.abs(c - want).max() / np.abs(want).max()))
        kernels = len(list(Path(folder).glob("*.pok")))
        print(f"\n1,000 random shapes of a matmul: {kernels} kernels compiled, greatest error {worst:.1e}, "
              f"median call {1e6 * np.median(times):.0f} us, slowest after the first {1e3 * max(times):.1f} ms")


SPREAD_3D = """op f(X: f32[B, C, D, H, W], F: f32[C, K, Q, R, S]) -> (Y: f32[B, K, 2*D + Q - 4, 2*H + R - 4, 2*W + S - 4]) {
    Y[b, k, o, p, q] += (X[b, c, (o + 1 - t) / 2, (p + 1 - r) / 2, (q + 1 - s) / 2] else 0) * F[c, k, t, r, s]
        where (o + 1 - t) % 2 == 0, (p + 1 - r) % 2 == 0, (q + 1 - s) % 2 == 0 }"""


def families() -> None:
    """Milliseconds of one core to compile residue classes that differ in numbers alone, proofs included; the least of three."""
    import polyop
    from polyop import Options
    nhwc = polyop.op("""op f(X: f32[B, H, W, C], F: f32[R, S, C, K]) -> (Y: f32[B, 2*H + R - 4, 2*W + S - 4, K]) {
        Y[b, p, q, k] += (X[b, (p + 1 - r) / 2, (q + 1 - s) / 2, c] else 0) * F[r, s, c, k]
            where (p + 1 - r) % 2 == 0, (q + 1 - s) % 2 == 0 }""")
    one, two = polyop.library("conv1d_transposed"), polyop.library("conv2d_transposed")
    print("classes of a transposed convolution                 ms")
    for title, made, consts in (("1-d, 2", one, {"stride": 2, "pad": 1}), ("2-d NCHW, 4", two, {"stride": 2, "pad": 1}),
                                ("2-d NHWC, 4", nhwc, None), ("2-d, 9 (stride 3)", two, {"stride": 3, "pad": 1}),
                                ("3-d, 8", polyop.op(SPREAD_3D), None)):
        best = []
        for _ in range(3):
            start = time.thread_time()
            found = made.compile(consts=consts, options=Options(threads=False))
            best.append(1e3 * (time.thread_time() - start))
        assert any("are one routine" in n for n in found.notes)
        print(f"{title:44s} {min(best):9.0f}", flush=True)


if __name__ == "__main__":
    if "--families" in sys.argv:
        families()
        sys.exit()
    calls = first_calls()
    if "--readme" in sys.argv:
        from polyop.bench import fill
        fill(Path(__file__).parents[1] / "README.md", "compiling", [
            "The first call of an operator, from text to result, in ms: compiled with all proofs, or from the disk cache.", "",
            f"| | {' | '.join(SHOWN)} |", "|---" * (len(SHOWN) + 1) + "|",
            f"| compiled | {' | '.join(f'{calls[n][0]:.0f}' for n in SHOWN)} |",
            f"| from the cache | {' | '.join(f'{calls[n][1]:.1f}' for n in SHOWN)} |"])
    overhead()
    thousand_shapes()
