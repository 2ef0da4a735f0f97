"""`bench/random_operators.py`: what it draws is the same by polyop and by its peers, and it says what it does."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pytest
from click.testing import CliRunner

from bench import random_operators as script
from bench.drawn.draw import Draw

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kind", script.KINDS)
def test_each_kind_is_drawn_and_measured(kind):
    times = script.measured(script.KINDS[kind](Draw(4), torch), rounds=1)
    assert set(times) >= {"polyop", "torch"} and all(0 < t < 10 for t in times.values())


def test_a_seed_draws_the_same_again():
    first, second = ([f(d, torch).label for f in script.KINDS.values()] for d in (Draw(7), Draw(7)))
    assert first == second


def test_a_result_that_differs_is_an_error():
    case = script.Case("wrong", lambda: np.ones(3), {"numpy": lambda: np.zeros(3)})
    with pytest.raises(AssertionError, match="wrong, numpy"):
        script.measured(case)


def test_what_is_slower_stands_at_the_end(monkeypatch):
    @dataclass
    class Fixed:
        ratios: list

        def __call__(self, case, clock, rounds=9):
            return {"polyop": 1.0, "torch": self.ratios.pop(0)}

    monkeypatch.setattr(script, "measured", Fixed([2.0, 0.5]))
    said = CliRunner().invoke(script.main, ["2", "--seed", "1", "--kind", "permute"]).output.splitlines()
    assert said[0] == "seed 1" and said[1].split()[0] == "2.00"
    assert said[-3:] == ["1.00 at the mean; slower 1 of 2", said[2], "no warning"]


def test_what_polyop_warns_of_is_said_and_fails(monkeypatch):
    def warning(case, clock):
        logging.getLogger("polyop").warning("polyop bug: f on rung tuned")
        return {"polyop": 1.0, "torch": 2.0}

    monkeypatch.setattr(script, "measured", warning)
    result = CliRunner().invoke(script.main, ["1", "--seed", "1", "--kind", "permute"])
    label = result.output.splitlines()[1].split(maxsplit=1)[1].split("  ")[0]
    assert result.exit_code == 1 and result.output.splitlines()[-1] == f"{label}: polyop bug: f on rung tuned"
