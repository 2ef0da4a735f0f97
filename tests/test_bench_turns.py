"""Benchmarks by turns: everybody in a process of its own computes the same, and whoever cannot is named."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import polyop
from polyop.bench import Book, Row, Turns, cases, from_json, others, to_json, turn_cells, turn_head, turn_markdown, turn_summary
from polyop.bench import turned as measured
from polyop.bench import turns as turning
from polyop.bench.case import Case, library
from polyop.bench.clock import Timing, timing
from polyop.bench.machine import Level, Machine
from polyop.bench.peers import Peer, chosen
from polyop.bench.turns import Stopped
from polyop.bench.worker import answers, least
from polyop.ir.errors import UnsupportedError

ROOT = Path(polyop.__file__).parents[1]
MACHINE = Machine("some", "some", 1, 100.0, (Level(1 << 19, 100.0, 100.0), Level(1 << 28, 10.0, 8.0)))
NUMPY = chosen(("numpy",))[0]
ADD = next(c for c in cases(["calls"], "small") if c.label == "add 8")
OWN = Case("mine", "dim0=9", *library("add"), {"dim0": 9}, 1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def as_many_threads():
    before = polyop.get_num_threads()
    yield
    polyop.set_num_threads(before)


@pytest.fixture
def command(bench, monkeypatch):
    monkeypatch.setattr("polyop.cli.bench.machine", lambda threads: MACHINE)
    return bench


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A checkout of another version, in which `add 8` has another result."""
    root = tmp_path_factory.mktemp("other")
    shutil.copytree(ROOT / "polyop", root / "polyop", ignore=shutil.ignore_patterns("__pycache__"))
    front = root / "polyop" / "__init__.py"
    front.write_text(front.read_text().replace(f'"{polyop.__version__}"', '"0.0.7"'))
    calls = root / "polyop" / "bench" / "groups" / "moves.py"
    calls.write_text(calls.read_text().replace("Z[i] = X[i] + Y[i] }", "Z[i] = X[i] + Y[i] + 1 }"))
    assert front.read_text() != (ROOT / "polyop" / "__init__.py").read_text()
    return root


def asked(*requests, peer: Peer | None = None) -> list[tuple[str, object]]:
    """The answers to `requests`, behind the first one, which says what is measured."""
    said = io.BytesIO()
    answers(peer, io.BytesIO(b"".join(pickle.dumps(r) for r in requests)), said)
    said.seek(0)
    return [pickle.load(said) for _ in range(1 + len(requests))]


# --- a worker ------------------------------------------------------------------------------------------------------------


def test_a_worker_says_what_it_measures_and_from_where():
    assert asked() == [("done", (polyop.__version__, str(ROOT)))]
    assert asked(peer=NUMPY[0]) == [("done", (np.__version__, str(ROOT)))]


@pytest.mark.parametrize("peer", [None, NUMPY[0]])
def test_a_worker_answers_with_results_and_then_with_times(peer):
    _, results, ms = asked(("results", "calls", "add 8", None), ("time", "calls", "add 8", 0.001), peer=peer)
    assert results[0] == "done" and results[1][0].shape == (8,)
    assert ms[0] == "done" and 0 < ms[1] < 1000


def test_a_worker_is_told_of_an_operator_that_is_in_no_group():
    own = OWN.program.source.text, OWN.name, dict(OWN.given), 1
    _, (outcome, got) = asked(("results", "mine", "x", own))
    assert outcome == "done" and got[0].shape == (9,)


def test_what_a_worker_cannot_do_is_answered_in_a_line_and_it_goes_on():
    found = asked(("results", "calls", "no such line", None), ("results", "no such group", "add 8", None),
                  ("time", "calls", "add 8", 0.001), ("results", "calls", "add 8", None), ("forget",),
                  ("time", "calls", "add 8", 0.001))[1:]
    assert [outcome for outcome, _ in found] == ["failed", "failed", "failed", "done", "done", "failed"]
    assert found[0] == found[1] == ("failed", "LookupError: there is no such case")


def test_processor_time_is_counted_whichever_thread_computes():
    def busy() -> None:
        stop = time.thread_time() + 0.002
        while time.thread_time() < stop:
            pass

    def call() -> None:
        thread = threading.Thread(target=busy)
        thread.start()
        thread.join()
    assert least(call, 0.001) >= 2


# --- the rounds ----------------------------------------------------------------------------------------------------------


def test_everybody_is_compared_and_timed_in_each_round():
    seen, steps = [], []
    found = measured([ADD], MACHINE, Turns(3, 0.001, NUMPY), "small", {"jax": "not installed"}, seen.append, steps.append)
    (row,) = found.rows
    assert row.verdict == "right" and row.error == 0 and [*row.times] == ["polyop", "numpy"] and seen == [(row,)]
    assert all(t.samples == 3 and t.least <= t.low <= t.median for t in row.times.values())
    assert found.rounds == 3 and found.versions["numpy"] == np.__version__ and found.missing == {"jax": "not installed"}
    assert steps[-1] == "calls: add 8, round 3 of 3" and row.flops == 8
    assert from_json(to_json(found)) == found and json.loads(to_json(found))["rows"][0]["least_over"]["numpy"] > 0


def test_another_checkout_is_measured_with_its_own_kernels_and_one_that_differs_is_not_timed(other, tmp_path):
    matmul = next(c for c in cases(["calls"], "small") if c.label.startswith("matmul"))
    found = measured([ADD, matmul], MACHINE, Turns(1, 0.001, against=other), "small", {})
    add, product = found.rows
    assert add.verdict == "WRONG" and add.reason == "differs from against" and not add.times and found.wrong == (add,)
    assert product.verdict == "right" and product.error == 0 and [*product.times] == ["polyop", "against"]
    assert found.versions["against"] == "0.0.7" != found.versions["polyop"] == polyop.__version__
    assert any((tmp_path / "cache" / "against").glob("*.pok"))


def test_what_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="is no checkout of polyop"):
        Turns(1, 0.001, against=tmp_path)


def test_a_peer_that_differs_or_cannot_is_left_out_of_the_line(monkeypatch):
    class Worker:
        def __init__(self, name, *said):
            self.name, self.said = name, [*said]

        def offers(self, case):
            return True

        def ask(self, *request):
            answer = self.said.pop(0) if request[0] != "forget" else None
            if isinstance(answer, str):
                raise Stopped(answer)
            return answer
    one, two = (np.ones(8, np.float32),), (np.full(8, 2, np.float32),)
    workers = [Worker("polyop", one, 1.0, 2.0), Worker("a", one, 3.0, 4.0), Worker("b", two), Worker("c", "no kernel"),
               Worker("d", one, 5.0, "it broke")]
    (row,) = turning._measured([ADD], workers, MACHINE, Turns(2, 0.001), lambda what: None)
    assert row.verdict == "right" and row.times == {"polyop": timing([1.0, 2.0]), "a": timing([3.0, 4.0])}
    assert row.skipped == {"b": "its result is off by 5e-01", "c": "no kernel", "d": "it broke"}
    (row,) = turning._measured([ADD], [Worker("polyop", one, "it broke")], MACHINE, Turns(2, 0.001), lambda what: None)
    assert row.verdict == "failed" and row.reason == "it broke" and not row.times


def test_a_process_that_ended_has_no_answer():
    with turning._working("numpy", NUMPY[0].offers, ROOT) as worker:
        assert worker.version == np.__version__
        worker.process.kill()
        worker.process.wait()
        for _ in range(2):
            with pytest.raises(Stopped, match="its process ended with -9"):
                worker.ask("results", "calls", "add 8", None)


def test_a_peer_that_cannot_start_is_missing(monkeypatch):
    def broken(name, offers, root):
        if name == "numpy":
            raise Stopped("ImportError: no such library")
        return working(name, offers, root)
    working = turning._working
    monkeypatch.setattr(turning, "_working", broken)
    found = measured([ADD], MACHINE, Turns(1, 0.001, NUMPY), "small", {})
    assert found.missing == {"numpy": "ImportError: no such library"} and [*found.rows[0].times] == ["polyop"]


def test_a_process_that_imports_another_polyop_is_no_worker():
    with pytest.raises(Stopped, match="python imports the one in"), turning._working("numpy", NUMPY[0].offers, ROOT / "tests"):
        pass


# --- the page and the command --------------------------------------------------------------------------------------------


def row(name: str, group: str = "g", **ms: float) -> Row:
    return Row(group, name, "right", times={n: Timing(2 * t, t, 3 * t, 5, t) for n, t in ms.items()})


def test_a_line_has_least_times_and_medians_and_how_many_times_as_fast_polyop_is():
    rows = row("a", polyop=1.0, numpy=2.0), row("b", polyop=2.0, numpy=1.0, onnx=4.0)
    assert others(rows) == ("numpy", "onnx")
    assert turn_head(others(rows)) == ("case", "polyop ms", "numpy ms", "over numpy", "onnx ms", "over onnx")
    assert turn_cells(rows[0], others(rows)) == ("a", "1, 2", "2, 4", "2.00x, 2.00x", "-", "-")
    assert turn_cells(Row("g", "c", "WRONG", reason="differs"), ("numpy",)) == ("c", "WRONG: differs", "", "")


def test_means_are_geometric_and_stand_before_the_lines():
    rows = row("a", polyop=1.0, numpy=2.0), row("b", polyop=2.0, numpy=1.0), row("c", "h", polyop=1.0, numpy=3.0)
    book = Book(MACHINE, "small", {"polyop": "1"}, {}, (*rows, replace(row("d", "h", polyop=1.0), skipped={"numpy": "no"})), 7)
    assert turn_summary(book)[1] == [("g", "2", "1.00x, 1.00x"), ("h", "2", "3.00x, 3.00x"), ("all", "4", "1.44x, 1.44x")]
    lines = turn_markdown(book)
    assert any("of 7 rounds" in line for line in lines) and "| h | d | numpy | no |" in lines
    assert lines.index("| all | 4 | 1.44x, 1.44x |") < lines.index("| a | 1, 2 | 2, 4 | 2.00x, 2.00x |")


def test_an_operator_of_the_user_is_measured_by_turns(command, tmp_path):
    file, page, out = tmp_path / "mine.pop", tmp_path / "page.md", tmp_path / "out.json"
    file.write_text("op mine(X: f32[M, N]) -> (Y: f32[M]) { Y[m] += X[m, n] }")
    page.write_text("<!-- measured -->\n<!-- end -->\n")
    status, printed, err = command(str(file), "-D", "M=5", "-D", "N=6", "--turns", "2", "--seconds", "0.001",
                                   "--against", str(ROOT), "--markdown", str(page), "--json", str(out))
    assert status == 0, err
    assert "M=5 N=6" in printed and "over against" in printed and "over against" in page.read_text()
    (found,) = from_json(out.read_text()).rows
    assert found.verdict == "right" and found.group == "mine" and [*found.times] == ["polyop", "against"]


def test_what_cannot_be_measured_by_turns_is_answered_in_words(command, tmp_path):
    status, _, err = command("calls", "--against", str(tmp_path))
    assert status == 2 and "`--against` needs `--turns`" in err
    status, _, err = command("calls", "--turns", "2", "--threads", "2")
    assert status == 2 and "one thread" in err
    status, _, err = command("dynamic", "--turns", "2")
    assert status == 2 and "there are none in dynamic" in err
    status, _, err = command("calls", "--turns", "2", "--against", str(tmp_path))
    assert status == 1 and "is no checkout of polyop" in err
    assert command("calls", "--turns", "0")[0] == 2 and command("calls", "--turns", "2", "--against", "/no/such")[0] == 2
