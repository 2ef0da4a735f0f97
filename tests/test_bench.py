"""The benchmarks themselves: what they compare is the same thing, and what they say is what they measured."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from polyop import standard
from polyop.bench import GROUPS, PEERS, cases, cells, fill, from_json, markdown, process, roofline, settings, summary, to_json
from polyop.bench import machine as machines
from polyop.bench import measure as measuring
from polyop.bench.book import Book, Row
from polyop.bench.case import Case, Sweep, library, text
from polyop.bench.clock import ROUNDS, SHORTEST, WARM, Timing, interleaved, timing
from polyop.bench.machine import Level, Machine
from polyop.bench.measure import Settings, bind, measure
from polyop.bench.peers import Peer, chosen, reason
from polyop.bench.sweep import swept
from polyop.dsl.check import instantiate
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import evaluate
from polyop.program import op

BENCH = str(Path(__file__).parents[1] / "bench")
MACHINE = Machine("some", "some", 1, 100.0, (Level(1 << 19, 100.0, 100.0), Level(1 << 28, 10.0, 8.0)))
NUMPY = chosen(("numpy",))[0]
HERE = Settings(MACHINE, NUMPY, 0.001)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def quick(monkeypatch):
    """Limits that need not be measured, and very short times."""
    monkeypatch.setattr(measuring, "machine", lambda threads: replace(MACHINE, threads=threads))
    monkeypatch.setattr("polyop.cli.bench.SECONDS", {"small": 0.001, "full": 0.001})


@pytest.fixture
def command(bench):
    return bench


def add(other=lambda xp, a, b: a + b, **more) -> Case:
    return Case("some", "add 100", *library("add"), {"dim0": 100}, rank=1, array=other, **more)


def row(name: str = "a", verdict: str = "right", group: str = "g", **ms: float) -> Row:
    times = {n: Timing(t, t, t, 5, t) for n, t in ms.items()}
    return Row(group, name, verdict, times=times, flops=1e6, bytes_=1000, least_ms=0.5)


# --- taking times --------------------------------------------------------------------------------------------------------


def test_a_timing_is_the_median_and_the_quartiles_around_it_and_the_least():
    assert timing([5.0, 1.0, 2.0, 4.0, 3.0]) == Timing(3.0, 2.0, 4.0, 5, least=1.0)
    assert timing([5.0, 1.0, 2.0, 4.0, 3.0]).spread == pytest.approx(1 / 3)


def test_things_are_called_by_turns_and_another_one_begins_each_round():
    called: list[str] = []

    def thing(name: str) -> None:
        called.append(name)
        time.sleep(2 * SHORTEST)
    first, second = interleaved([lambda: thing("a"), lambda: thing("b")], 0.001)
    assert called[:4] == ["a", "a", "b", "b"]  # none of these is timed
    assert "".join(called[4:]) == ("abba" * first.samples)[: 2 * first.samples]
    assert first.samples == second.samples >= ROUNDS


def test_after_a_rest_something_long_is_called_once_before_the_clock_runs():
    called: list[str] = []
    (found,) = interleaved([lambda: called.append("a") or time.sleep(2 * WARM)], 0.001, rest=lambda: time.sleep(1e-4))
    assert len(called) == 2 + 2 * found.samples


def test_after_a_rest_something_short_is_called_for_a_while_before_the_clock_runs_and_while_it_does():
    called: list[float] = []

    def short() -> None:
        called.append(time.perf_counter())
        time.sleep(2 * SHORTEST)
    (found,) = interleaved([short], 0.001, rest=lambda: time.sleep(2 * WARM))
    rounds = [k for k in range(3, len(called)) if called[k] - called[k - 1] > 2 * WARM]
    assert len(rounds) >= ROUNDS - 1 and found.samples > 2 * ROUNDS
    assert len(called) > 2 + found.samples + 2 * ROUNDS


def test_something_short_is_sampled_many_calls_at_a_time():
    calls = 0

    def short() -> None:
        nonlocal calls
        calls += 1
    (found,) = interleaved([short], 0.001)
    assert calls > 10 * found.samples and found.median < 0.01


class Spinning:
    """A clock of a process whose threads spin for some seconds, and then sleep."""

    def __init__(self, seconds: float) -> None:
        self.now, self.until = 0.0, seconds

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return min(self.now, self.until)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("spins", "rests"), [(0.0, 0.01), (0.1, 0.12), (9.0, 0.5)])
def test_a_rest_lasts_until_no_thread_spins_or_it_has_lasted_long(spins, rests, monkeypatch):
    clock = Spinning(spins)
    monkeypatch.setattr(process, "time", clock)
    process.rest(most=0.5)
    assert clock.now == pytest.approx(rests, abs=0.011)


# --- the machine ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_the_limits_of_a_machine_are_measured(threads, monkeypatch):
    monkeypatch.setattr(machines, "SIZES", (1 << 19, 1 << 21))
    found = machines.machine(threads)
    assert 1 < found.gflops < 100_000 and found.threads == threads
    assert all(0.1 < rate < 10_000 for level in found.levels for rate in (level.reads, level.copies))


def test_a_call_takes_at_least_what_its_arithmetic_or_its_traffic_takes():
    assert MACHINE.least_ms(1e8, 0, 0) == pytest.approx(1.0)
    assert MACHINE.least_ms(1e8, 0, 0, wide=True) == pytest.approx(2.0)  # half as many f64 fit into a vector
    assert MACHINE.least_ms(0.0, 1000, 1000) == 0.0                      # in the nearest caches nothing is said of traffic
    reading, copying = MACHINE.least_ms(0.0, 1 << 28, 0), MACHINE.least_ms(0.0, 1 << 27, 1 << 27)
    assert reading == pytest.approx((1 << 28) / 10.0 / 1e6) and copying == pytest.approx((1 << 28) / 8.0 / 1e6)


def test_bandwidth_falls_between_the_working_sets_that_were_measured():
    assert MACHINE.bandwidth(1 << 10) == (100.0, 100.0) and MACHINE.bandwidth(1 << 30) == (10.0, 8.0)
    assert 10 < MACHINE.bandwidth(1 << 24)[0] < 100


# --- a case --------------------------------------------------------------------------------------------------------------


def test_a_case_is_compared_and_then_timed_beside_its_peers():
    found = measure(add(), HERE)
    assert found.verdict == "right" and found.error == 0 and set(found.times) == {"polyop", "numpy"}
    assert found.flops == 100 and found.bytes_ == 1200 and found.best == "numpy" and found.over("numpy") > 0


def test_a_wrong_result_is_never_timed():
    found = measure(add(lambda xp, a, b: a + b + 1), HERE)
    assert found.verdict == "WRONG" and not found.times and "numpy" in found.reason
    assert "WRONG" in cells(found)


def test_a_peer_that_fails_is_left_out_with_its_reason():
    def broken(xp, a, b):
        raise ValueError("no such thing here")
    found = measure(add(broken), HERE)
    assert found.verdict == "alone" and set(found.times) == {"polyop"} and "no such thing" in found.skipped["numpy"]


def test_a_peer_that_differs_from_the_first_one_is_left_out():
    (numpy,) = NUMPY
    odd = replace(numpy, name="odd", function=lambda case, inputs, threads: lambda a, b: a - b)
    found = measure(add(), replace(HERE, peers=(numpy, odd)))
    assert found.verdict == "right" and "odd" not in found.times and "off by" in found.skipped["odd"]


def test_a_peer_everybody_would_wait_for_is_left_out(monkeypatch):
    monkeypatch.setattr(measuring, "SLOW", 0.0)
    assert "a call takes" in measure(add(), HERE).skipped["numpy"]


def test_a_case_that_polyop_refuses_is_marked_as_failed():
    found = measure(Case("some", "cut", *library("slice"), {"dim0": 2, "N": 3, "start": 2, "stop": 1}, rank=1), HERE)
    assert found.verdict == "failed" and found.reason and "failed" in cells(found)


def test_cold_inputs_go_round_in_more_copies_than_caches_hold(monkeypatch):
    monkeypatch.setattr(measuring, "COLD", 4000)
    bound = bind(add(cold=True))
    assert len(bound.turns) == 4000 // 800 + 2 and len({x[0].ctypes.data for x in bound.turns}) == len(bound.turns)
    assert len(bind(add()).turns) == 1
    assert measure(add(cold=True), HERE).verdict == "right"


def test_rows_picked_from_a_table_count_and_not_the_table():
    found = measure(Case("some", "rows", *library("embedding"), {"dim0": 10, "V": 1000, "D": 8}, rank=1), HERE)
    assert found.bytes_ == 10 * 8 + 2 * 10 * 8 * 4


def test_several_results_are_all_compared():
    case = Case("some", "ends", *library("minmax_rows"), {"dim0": 3, "N": 9}, rank=1, array=lambda xp, x: (x.min(-1), x.max(-1)))
    assert measure(case, HERE).verdict == "right"
    assert measure(replace(case, array=lambda xp, x: (x.min(-1), x.max(-1) + 1)), HERE).verdict == "WRONG"


def test_a_sweep_counts_compiling_and_is_alone_without_torch():
    sweep = Sweep("some", "two", "op swept_twice(X: f32[N]) -> (Y: f32[N]) { Y[i] = 3 * X[i] }", ({"N": 3}, {"N": 7}),
                  lambda t, x: 3 * x)
    found = swept(sweep, ())
    assert found.verdict == "alone" and found.times["polyop"].median > 1 and found.limit is None


def test_a_sweep_whose_kernels_are_kept_loads_them_from_disk_and_compiles_nothing(monkeypatch):
    made = []
    monkeypatch.setattr("polyop.bench.sweep.op", lambda text: _counted(op(text), made))
    sweep = Sweep("some", "two", "op swept_kept(X: f32[N]) -> (Y: f32[N]) { Y[i] = 5 * X[i] }", ({"N": 3}, {"N": 7}),
                  lambda t, x: 5 * x)
    assert swept(replace(sweep, kept=True), ()).verdict == "alone" and made.count("swept_kept") == 1
    assert [s.kept for s in GROUPS["cached"]()] == [True] * len(list(GROUPS["dynamic"]()))


def _counted(f, made):
    """`f`, which writes down the name of what it compiles."""
    real = f._compile
    f._compile = lambda o, *rest: made.append(o.name) or real(o, *rest)
    return f


def test_kernels_for_all_sizes_are_compared_with_the_same_text_whose_sizes_are_numbers():
    for case in GROUPS["fixed"]():
        dynamic, known = (instantiate(p, p.ops[0].name, library=standard.LIBRARY) for p in (case.program, text(case.fixed)[0]))
        assert set(dynamic.sizes) == set(case.given) and not known.sizes, case.label
        found = [[evaluate(e, case.given) for e in t.shape] for o in (dynamic, known) for t in (*o.inputs, *o.outputs)]
        assert found[: len(found) // 2] == found[len(found) // 2 :], case.label


# --- peers ---------------------------------------------------------------------------------------------------------------


def test_a_peer_that_is_not_installed_is_reported(monkeypatch):
    nobody = Peer("nobody", ("no_such_package",), lambda n: None, lambda c: True, lambda c, x, n: lambda: None)
    monkeypatch.setattr("polyop.bench.peers.PEERS", (*NUMPY, nobody))
    peers, missing = chosen(())
    assert peers == NUMPY and missing == {"nobody": "no_such_package not installed"}


def test_peers_that_compile_for_seconds_are_asked_in_full_books_or_by_name(monkeypatch):
    patient = replace(NUMPY[0], name="patient", patient=True)
    monkeypatch.setattr("polyop.bench.peers.PEERS", (patient,))
    assert chosen((), patient=False) == ((), {"patient": "takes seconds for each case"})
    assert chosen(()) == ((patient,), {}) == chosen(("patient",), patient=False)


ALL = chosen(())[0]
PEER_CASES = {
    "torch": Case("p", "c", *library("matmul"), {"M": 5, "N": 6, "K": 7, "T": "bf16"}, tolerance=0.05,
                  torch=lambda t, a, b: a @ b),
    "compile": Case("p", "c", *library("add"), {"dim0": 9}, rank=1, torch=lambda t, a, b: a + b, compiled=True),
    "numpy": Case("p", "c", *library("matmul"), {"M": 5, "N": 6, "K": 7}, einsum="ij,jk->ik"),
    "opt_einsum": Case("p", "c", *library("matmul"), {"M": 5, "N": 6, "K": 7}, einsum="ij,jk->ik"),
    "jax": Case("p", "c", *library("add"), {"dim0": 9}, rank=1, array=lambda xp, a, b: xp.add(a, b)),
    "onnx": next(c for c in cases(["reductions"], "small") if c.onnx and c.onnx.constants),
    "numba": next(c for c in cases(["semirings"], "small") if c.loops),
    "fixed": next(iter(cases(["fixed"], "small"))),
}


def test_there_is_a_case_for_every_peer():
    assert set(PEER_CASES) == {p.name for p in PEERS} and all(p.offers(PEER_CASES[p.name]) for p in PEERS)


@pytest.mark.parametrize("name", PEER_CASES)
def test_each_installed_peer_computes_the_same(name):
    peers = tuple(p for p in ALL if p.name == name)
    if not peers or (name == "compile" and not any(importlib.util.find_spec(p) for p in ("torch",))):
        pytest.skip("not installed")
    for p in peers:
        p.ready(1)
    found = measure(PEER_CASES[name], replace(HERE, peers=peers))
    assert found.verdict == "right" and name in found.times, (found.reason, found.skipped)


# --- the groups ----------------------------------------------------------------------------------------------------------


def test_every_group_has_quick_cases_and_labels_that_differ():
    for group in GROUPS:
        full = [(c.group, c.label) for c in cases([group], "full")]
        assert len(set(full)) == len(full) > len(list(cases([group], "small"))) > 0
        assert {g for g, _ in full} == {group}


def small(case: Case) -> Case:
    """The same with sizes of a few elements, where the sizes may be chosen."""
    return replace(case, given={n: min(v, 6) if type(v) is int else v for n, v in case.given.items()})


@pytest.mark.parametrize("group", ["elementwise", "rows", "calls"])
def test_cases_compute_the_same_as_their_peers(group):
    peers = tuple(p for p in ALL if p.name in ("torch", "numpy"))
    for case in list(cases([group], "small"))[:4]:
        found = measure(small(case), replace(HERE, peers=peers))
        assert found.verdict in ("right", "alone"), (case.label, found.reason)


# --- the book ------------------------------------------------------------------------------------------------------------


def book(*rows: Row) -> Book:
    return Book(MACHINE, "small", {"polyop": "1", "numpy": "2"}, {"jax": "jax not installed"}, rows)


def test_a_book_goes_to_json_and_comes_back():
    made = book(row(polyop=1.0, numpy=2.0, torch=3.0), Row("g", "b", "WRONG", 0.5, "differs from numpy"))
    data = json.loads(to_json(made))
    assert data["format"] == 1 and data["machine"]["gflops"] == 100.0 and data["missing"] == {"jax": "jax not installed"}
    assert data["rows"][0]["best"] == "numpy" and data["rows"][0]["over"] == {"numpy": 2.0, "torch": 3.0}
    assert data["rows"][0]["least_over"] == data["rows"][0]["over"]
    assert data["rows"][0]["times"]["numpy"] == {"median": 2.0, "low": 2.0, "high": 2.0, "samples": 5, "least": 2.0}
    assert data["rows"][1]["verdict"] == "WRONG" and data["rows"][1]["times"] == {}
    assert from_json(to_json(made)) == made
    with pytest.raises(ValueError, match="format"):
        from_json('{"format": 0}')


def test_a_summary_has_geometric_means_over_the_best_peer_and_over_each():
    head, lines = summary(book(row("a", polyop=1.0, numpy=2.0, torch=4.0), row("b", polyop=2.0, numpy=1.0), row("c", polyop=1.0)))
    assert head[:6] == ("group", "cases", "over the best", "at the limit", "slower", "least")
    assert set(head[6:]) == {"over numpy", "over torch"}
    by_name = dict(zip(head, lines[0], strict=True))
    assert by_name["over the best"] == "1.00x" and by_name["slower"] == "1 of 2" and by_name["least"] == "0.50x b"
    assert by_name["over torch"] == "4.00x" and lines[-1][0] == "all"
    assert by_name["at the limit"] == "2.83x"  # 0.5 ms would be 4 and 2 times as fast as numpy


def test_nothing_is_said_of_a_limit_that_is_unknown_or_only_bounded():
    rows = row("a", polyop=1.0, numpy=2.0), replace(row("b", polyop=1.0, numpy=9.0), exact=False)
    head, lines = summary(book(*rows, replace(row("c", polyop=1.0, numpy=9.0), least_ms=0.0)))
    assert dict(zip(head, lines[0], strict=True))["at the limit"] == "4.00x"


def test_losses_and_who_was_left_out_stand_before_the_tables():
    lines = markdown(book(row("won", polyop=1.0, numpy=2.0), row("lost", polyop=2.0, numpy=1.0)))
    start = lines.index("### Where polyop is slower than the best peer")
    losses = "\n".join(lines[start : lines.index("### g")])
    left = replace(row("slow", polyop=1.0), skipped={"jax": "a call takes 2.0 s"})
    assert "| g | slow | jax | a call takes 2.0 s |" in markdown(book(left))
    assert "lost" in losses and "won" not in losses
    assert any("jax not installed" in line for line in lines) and any("numpy 2" in line for line in lines)


def test_numbers_go_between_the_marks_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- measured -->\nold\n<!-- end -->\nb\n<!-- end -->\n")
    fill(page, "measured", ["new \\1"])
    assert page.read_text() == "a\n<!-- measured -->\n\nnew \\1\n\n<!-- end -->\nb\n<!-- end -->\n"
    with pytest.raises(UnsupportedError, match="no place"):
        fill(page, "nothing", [])


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_roofline_is_drawn(tmp_path, kind):
    path = tmp_path / f"roof.{kind}"
    assert roofline(book(row(polyop=1.0), Row("g", "dynamic", "alone", times={"polyop": timing([1.0])})), path) == 1
    assert path.stat().st_size > 1000


def test_without_matplotlib_a_picture_is_refused_in_words(command, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "matplotlib" else find(n))
    status, _, err = command("calls", "--plot", str(tmp_path / "x.svg"))
    assert status == 1 and "polyop[plots]" in err


# --- the command ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_groups_are_measured_and_printed_with_their_summary(command, tmp_path, monkeypatch):
    monkeypatch.setitem(GROUPS, "calls", lambda: iter([replace(add(), group="calls", quick=True), replace(add(), group="calls")]))
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    page.write_text("<!-- measured -->\n<!-- end -->\n")
    status, printed, err = command("calls", "--peer", "numpy", "--json", str(out), "--markdown", str(page))
    assert status == 0, err
    assert "add 100" in printed and "100 GF/s" in printed and "over numpy" in printed and printed.count("of the limit") == 1
    found = from_json(out.read_text())
    assert [r.verdict for r in found.rows] == ["right"] and set(found.versions) >= {"polyop", "Python", "numpy"}
    assert "add 100" in page.read_text()


@pytest.mark.usefixtures("quick")
def test_a_wrong_case_is_named_and_the_command_fails(command, monkeypatch):
    monkeypatch.setitem(GROUPS, "calls", lambda: iter([replace(add(lambda xp, a, b: a), quick=True)]))
    status, printed, _ = command("calls", "--peer", "numpy")
    assert status == 1 and "WRONG" in printed and "differs from numpy" in printed


@pytest.mark.usefixtures("quick")
def test_peers_that_are_not_there_are_named(command, monkeypatch):
    nobody = Peer("nobody", ("no_such_package",), lambda n: None, lambda c: True, lambda c, x, n: lambda: None)
    monkeypatch.setattr("polyop.bench.peers.PEERS", (*NUMPY, nobody))
    monkeypatch.setitem(GROUPS, "calls", lambda: iter([replace(add(), quick=True)]))
    assert "without nobody: no_such_package not installed" in command("calls")[1]


@pytest.mark.usefixtures("quick")
def test_an_operator_of_the_user_is_timed_alone(command, tmp_path):
    file = tmp_path / "mine.pop"
    file.write_text("op mine(X: f32[M, N]) -> (Y: f32[M]) { Y[m] += X[m, n] }")
    status, printed, err = command(str(file), "-D", "M=512", "--json", str(tmp_path / "out.json"))
    assert status == 0, err
    assert "so assumed: N = 64" in printed and "median" in printed and "GB/s" in printed
    (found,) = from_json((tmp_path / "out.json").read_text()).rows
    assert found.verdict == "alone" and found.group == "mine" and found.flops == 512 * 64 and set(found.times) == {"polyop"}


@pytest.mark.usefixtures("quick")
def test_a_name_with_sizes_is_an_operator_even_if_it_is_a_group_too(command):
    sizes = [x for n in "MNBHDE" for x in ("-D", f"{n}=3")]
    status, printed, err = command("attention", "attention", *sizes)
    assert status == 0 and "median" in printed, err


def test_what_is_neither_a_group_nor_a_file_is_answered_in_words(command):
    assert "E102" in command("no_such_thing")[2]
    assert command("matmul", "rows", "stencil", "-D", "M=3")[0] == 2
    assert command("--size", "huge")[0] == 2 and command("--peer", "nobody")[0] == 2


def test_a_page_without_a_place_is_refused_before_anything_is_measured(command, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    status, _, err = command("calls", "--markdown", str(page))
    assert status == 1 and "<!-- measured -->" in err


def test_help_names_every_option_and_group(command):
    status, printed, _ = command("--help")
    assert status == 0 and all(group in printed for group in GROUPS)
    assert all(o in printed for o in ("--size", "--threads", "--peer", "--seconds", "--json", "--plot", "--markdown", "--define"))
    assert "--turns ROUNDS" in printed and "--against CHECKOUT" in printed


@pytest.mark.usefixtures("quick")
def test_settings_are_for_as_many_threads_as_are_asked_for():
    from polyop.runtime import threads
    before = threads.get_num_threads()
    try:
        made, missing = settings(2, ("numpy",), 0.5)
        assert made.limits.threads == 2 == threads.get_num_threads() and not missing and made.budget == 0.5
    finally:
        threads.set_num_threads(before)


# --- the scripts of bench/ -----------------------------------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch):
    """Imports a module of bench/, which is no package."""
    monkeypatch.syspath_prepend(BENCH)
    yield __import__
    for name in ("run", "compile"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("quick")
def test_the_summary_goes_into_the_readme(script, tmp_path, monkeypatch, capsys):
    run = script("run")
    monkeypatch.setattr(run, "README", tmp_path / "README.md")
    monkeypatch.setitem(GROUPS, "calls", lambda: iter([add()]))
    run.README.write_text("<!-- measured -->\n<!-- end -->\n")
    assert run.main(["--group", "calls", "--readme", "--seconds", "0.001"]) == 0
    assert "| some | 1 |" in run.README.read_text() and "add 100" in capsys.readouterr().out


def test_a_process_reports_its_first_call_and_leaves_the_kernel_to_the_next_one(script, tmp_path):
    compiling = script("compile")
    cold = compiling.once("relu", tmp_path)
    kernels = {p: p.read_bytes() for p in tmp_path.glob("*.pok")}
    warm = compiling.once("relu", tmp_path)
    assert len(kernels) >= 2  # the operator that warms up, and the one that is measured
    assert {p: p.read_bytes() for p in tmp_path.glob("*.pok")} == kernels
    for found in (cold, warm):
        assert found.keys() == {"import", "first"} and min(found.values()) > 0


def test_operators_whose_compilation_is_measured_exist(script):
    compiling = script("compile")
    assert set(compiling.SHOWN) <= set(compiling.COLD) <= set(standard.index())


def test_why_a_peer_is_left_out_is_a_line_even_where_its_error_says_nothing():
    assert reason(NotImplementedError()) == "NotImplementedError"
    assert reason(ValueError("\n the cause\n and a page")) == "ValueError: the cause"
