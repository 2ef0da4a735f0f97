"""Random operators of usual kinds against NumPy and PyTorch: where a kind of operator is slow that no benchmark has.

    python bench/random_operators.py 100                  so many, with a seed that it prints
    python bench/random_operators.py 100 --seed 3         the same ones again
    python bench/random_operators.py 50 --kind contraction --kind gather

Each line has the ratio to the best peer, above 1 where polyop is faster: least times by turns, of the processor on one thread,
checked against the peers. At the end, what is slower, and what polyop warned of meanwhile, such as a kernel that it could not
make as it meant to. A copy in the same order is none for NumPy and PyTorch, so that there is none here; a result of einsum that
NumPy or PyTorch would leave turned is put in order, as ours is.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

import polyop  # noqa: E402
from bench.drawn import layers, tensors  # noqa: E402
from bench.drawn.draw import Case, Draw  # noqa: E402


class Warned(logging.Handler):
    """What polyop warns of, in order."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


KINDS = {f.__name__: f for f in (*tensors.KINDS, *layers.KINDS)}


def measured(case: Case, clock: Callable[[], float] = time.thread_time, rounds: int = 9) -> dict[str, float]:
    """Least seconds of a call by each, by turns, as `clock` counts them. Raises AssertionError where results differ."""
    calls = {"polyop": case.polyop, **case.peers}
    wanted = {n: np.asarray(f(), np.float64) for n, f in calls.items()}
    for n, w in wanted.items():
        scale = max(1.0, float(np.abs(w).max(initial=0)))
        np.testing.assert_allclose(wanted["polyop"] / scale, w / scale, rtol=1e-2, atol=1e-3, err_msg=f"{case.label}, {n}")
    for _ in range(4):
        case.polyop()
    start = clock()
    case.polyop()
    turns = max(1, min(2000, int(0.002 / max(1e-7, clock() - start))))
    least = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for n, f in calls.items():
            start = clock()
            for _ in range(turns):
                f()
            least[n] = min(least[n], (clock() - start) / turns)
    return least


@click.command(help=__doc__)
@click.argument("count", type=click.IntRange(min=1))
@click.option("--seed", type=int, help="Which ones.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only of these kinds.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of polyop and of PyTorch.")
def main(count: int, seed: int | None, kinds: tuple[str, ...], threads: int) -> None:
    """Draw, measure, print."""
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed, against which most of these are measured: pip install torch")
    torch.set_num_threads(threads)
    polyop.set_num_threads(threads)
    warned, clock = Warned(), time.thread_time if threads == 1 else time.perf_counter
    log = logging.getLogger("polyop")
    log.addHandler(warned)
    click.get_current_context().call_on_close(lambda: log.removeHandler(warned))
    seed = int(time.time()) if seed is None else seed
    click.echo(f"seed {seed}")
    draw, slower, product = Draw(seed), [], 0.0
    for _ in range(count):
        case = KINDS[draw.one(*(kinds or KINDS))](draw, torch)
        before = len(warned.said)
        times = measured(case, clock)
        ratio = min(t for n, t in times.items() if n != "polyop") / times["polyop"]
        product += math.log(ratio)
        line = f"{ratio:7.2f}  {case.label}  " + ", ".join(f"{n} {t * 1e6:.1f} us" for n, t in times.items())
        click.echo(line)
        warned.said[before:] = [f"{case.label}: {said}" for said in warned.said[before:]]
        slower += [(ratio, line)] if ratio < 1 else []
    click.echo(f"\n{math.exp(product / count):.2f} at the mean; slower {len(slower)} of {count}")
    for _, line in sorted(slower):
        click.echo(line)
    click.echo("\n".join(("", *warned.said)) if warned.said else "no warning")
    sys.exit(bool(warned.said))


if __name__ == "__main__":
    main()
