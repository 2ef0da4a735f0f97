"""The command line: what each command prints, and that nothing a user does gets a traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from polyop import cli, standard
from polyop.cli.commands import COMMANDS, commands
from polyop.ir.errors import UnsupportedError
from polyop.runtime import amdgcn, cxx, nvrtc
from polyop.runtime.banks import Traffic, in_words
from polyop.trace import STAGES

PROGRAM = """
# The product of two matrices.
op matmul<T: float>(A: T[M, K], B: T[K, N]) -> (C: T[M, N]) {
    C[m, n] += A[m, k] * B[k, n]
}

op scaled(X: f32[N]; a: f32 = 2, const n: int, steps: int) -> (Y: f32[n*N]) where steps >= 1 {
    Y[n*i + j] = a * X[i] * steps  where j in 0:n
}

op bump(inout X: f32[N]; by: f32 = 1) { X[i] = X[i] + by }
"""

WRONG = """op shifted(X: f32[N]) -> (Y: f32[N]) {
    Y[i] = X[i - 1]
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ops.pop"
    path.write_text(PROGRAM)
    return str(path)


@pytest.fixture
def call(capsys):
    """Run a command; its exit status, what it printed, and what it said on stderr."""
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            cli.main(list(arguments))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return int(exited.value.code or 0), captured.out, captured.err
    return run


# --- run -----------------------------------------------------------------------------------------------------------------


def test_run_makes_up_what_is_not_given_and_says_so(call, file):
    status, out, _ = call("run", file, "matmul", "-D", "M=5", "-D", "K=7")
    assert status == 0
    assert "assumed: N = 64" in out
    assert "5 x 64" in out and "float32" in out


def test_run_checks_against_a_plain_evaluation(call, file):
    status, out, _ = call("run", file, "matmul", "-D", "M=5", "-D", "K=7", "-D", "N=3", "-D", "T=f64", "--check", "--time")
    assert status == 0
    assert "right: off by" in out and "float64" in out and "operations/s" in out


def test_run_shows_results_that_have_no_mean(call, tmp_path):
    infinite = tmp_path / "inf.pop"
    infinite.write_text("op a(X: f32[N]) -> (Y: f32[N]) { Y[i] = (i < 1 ? 1.0 : -1.0) / (X[i] - X[i]) }")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code, out, err = call("run", str(infinite), "-D", "N=4")
    assert code == 0 and "-inf" in out and "nan" in out, err


def test_run_checks_large_calls_at_smaller_sizes(call, file):
    status, out, _ = call("run", file, "matmul", "-D", "M=100", "-D", "K=100", "-D", "N=100", "--check")
    assert status == 0
    assert "right at M = 11, K = 11, N = 11" in out


def test_run_reads_and_writes_npy_files(call, file, tmp_path):
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", a.T.copy())
    status, out, _ = call("run", file, "matmul", "-D", f"A={tmp_path / 'a.npy'}", "-D", f"B={tmp_path / 'b.npy'}",
                          "--out", str(tmp_path / "results"))
    assert status == 0 and "assumed" not in out
    np.testing.assert_array_equal(np.load(tmp_path / "results" / "C.npy"), a @ a.T)


def test_run_takes_consts_scalars_and_integers(call, file, tmp_path):
    np.save(tmp_path / "x.npy", np.array([1, 2], np.float32))
    status, _, _ = call("run", file, "scaled", "-D", f"X={tmp_path / 'x.npy'}", "-D", "n=2", "-D", "a=0.5", "-D", "steps=3",
                        "--out", str(tmp_path))
    assert status == 0
    np.testing.assert_array_equal(np.load(tmp_path / "Y.npy"), np.array([1.5, 1.5, 3, 3], np.float32))


def test_run_leaves_the_file_of_an_inout_alone(call, file, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(4, np.float32))
    status, _, _ = call("run", file, "bump", "-D", f"X={tmp_path / 'x.npy'}", "--out", str(tmp_path / "out"), "--check")
    assert status == 0
    assert np.load(tmp_path / "x.npy").max() == 0 and np.load(tmp_path / "out" / "X.npy").min() == 1


def test_run_knows_the_library_and_keeps_positions_inside(call):
    status, out, _ = call("run", "embedding", "-D", "V=3", "-D", "D=4", "--check", "--rank", "2")
    assert status == 0 and "right" in out


def test_the_same_seed_gives_the_same_numbers(call):
    same = [call("run", "relu", "--seed", "7")[1].splitlines()[2] for _ in range(2)]
    other = call("run", "relu", "--seed", "8")[1].splitlines()[2]
    assert same[0] == same[1] != other


# --- looking -------------------------------------------------------------------------------------------------------------


def test_check_prints_what_is_inferred_and_proved(call, file):
    status, out, _ = call("check", file)
    assert status == 0
    assert "C[m, n] add= f32: m in 0:M, n in 0:N, k in 0:K (reduced)" in out
    assert "checked for n = 1" in out
    assert out.count("proved for all sizes") == 3


def test_check_reports_every_wrong_operator_and_fails(call, tmp_path):
    path = tmp_path / "two.pop"
    path.write_text(WRONG + WRONG.replace("shifted", "again") + "op fine(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] }")
    status, out, err = call("check", str(path))
    assert status == 1
    assert err.count("error[E311]: `X` is read outside its bounds") == 2
    assert "fine" in out


def test_check_prints_warnings_and_succeeds(call, tmp_path):
    path = tmp_path / "warn.pop"
    path.write_text("op f(X: f32[N, K], b: f32[N]) -> (Y: f32[N]) { Y[n] += X[n, k] + b[n] }")
    status, _, err = call("check", str(path))
    assert status == 0 and "warning[W401]" in err


@pytest.mark.parametrize("stage", STAGES)
def test_show_prints_every_stage(call, stage):
    status, out, _ = call("show", "softmax", "--stage", stage)
    assert status == 0 and out.strip()


def test_show_without_a_stage_lists_them(call):
    status, out, _ = call("show", "softmax")
    assert status == 0 and all(stage in out for stage in STAGES)


def test_show_compiles_for_a_gpu_without_one(call):
    status, out, _ = call("show", "softmax", "--stage", "source", "--target", "hip:gfx942")
    assert status == 0 and "__global__" in out


def test_an_unknown_stage_is_answered_with_the_known_ones(call):
    status, _, err = call("show", "softmax", "--stage", "loop")
    assert status == 1
    assert "did you mean `loops`?" in err and "help: stages are op, scop" in err


def test_explain_names_loops_work_and_proofs(call):
    status, out, _ = call("explain", "softmax", "-D", "C=10", "-D", "dim0=1000")
    assert status == 0
    assert "(parallel)" in out and "exp: C*dim0 calls  = 10 k" in out and out.count("  holds  ") >= 8


def test_targets_lists_every_family(call):
    status, out, _ = call("targets")
    assert status == 0 and all(name in out for name in ("x86:x86-64-v2", "cuda:sm_90a", "hip:gfx942"))


def test_targets_says_what_brings_the_compilers(call, monkeypatch):
    def none() -> amdgcn.Tools:
        raise UnsupportedError("none")

    monkeypatch.setattr(nvrtc, "unavailable", lambda: "none")
    monkeypatch.setattr(amdgcn, "tools", none)
    _, out, _ = call("targets")
    assert "text; `polyop[cuda]` adds the cubin" in out and "text; `polyop[hip]` adds the code object" in out


def test_library_lists_and_prints_operators(call):
    status, out, _ = call("library")
    assert status == 0 and "softmax" in out and "lstm" in out
    status, out, _ = call("library", "rmsnorm")
    assert status == 0 and out.startswith("#") and "op rmsnorm<T: float>" in out and out.rstrip().endswith("}")
    assert call("library", "linalg")[1] == standard.texts()["linalg.pop"]


def test_every_definition_of_the_library_can_be_printed_alone():
    for name in standard.index():
        text = standard.definition(name)
        assert text.count("{") == text.count("}") and f" {name}" in text


def test_the_cache_can_be_measured_and_cleared(call, tmp_path):
    path = tmp_path / "once.pop"
    path.write_text("op only_in_this_test(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] * 77 }")
    call("run", str(path))
    count = len(list((tmp_path / "cache").glob("*.pok")))
    assert count >= 1
    assert f": {count} kernel" in call("cache")[1]
    assert f"removed {count} kernel" in call("cache", "clear")[1]
    assert ": 0 kernels" in call("cache")[1]


# --- what is wrong -------------------------------------------------------------------------------------------------------


def test_a_wrong_program_gets_its_report_on_stderr_and_status_1(call, tmp_path):
    path = tmp_path / "wrong.pop"
    path.write_text(WRONG)
    status, out, err = call("run", str(path))
    assert status == 1
    assert "error[E311]" in err and "^^^^^^^^ i = 0 reads X[-1] when N = 1" in err and "help: give the value outside" in err
    assert "error" not in out


def test_files_that_are_no_programs_are_refused(call, tmp_path):
    binary = tmp_path / "binary.pop"
    binary.write_bytes(bytes(range(256)))
    empty = tmp_path / "empty.pop"
    empty.write_text("")
    for path, says in ((tmp_path / "none.pop", "cannot read"), (tmp_path, "directory"), (binary, "no text"),
                       (empty, "defines no operator")):
        status, _, err = call("run", str(path))
        assert status == 1 and says in err, path


def test_a_name_that_is_not_there_is_answered_with_one_that_is(call, file):
    assert "did you mean `matmul`" in call("run", file, "matmull")[2]
    assert "did you mean `softmax`" in call("run", "softmx")[2]
    status, _, err = call("run", file)
    assert status == 1 and "matmul, scaled, bump; expected one" in err


@pytest.mark.parametrize("text", ["M", "M=", "=3", "M=1e", "3=4", "M=x y"])
def test_a_definition_that_is_none_is_a_usage_error(call, file, text):
    status, _, err = call("run", file, "matmul", "-D", text)
    assert status == 2 and "-D" in err


@pytest.mark.parametrize("text, says", [
    ("M=-1", "a size, an integer of at least 0"), ("M=2.5", "a size"), ("M=true", "a size"), ("T=i32", "cannot be i32"),
    ("T=3", "a dtype"), ("A=3", "the name of a .npy file"), ("Q=3", "no size or parameter `Q`"), ("M=99999999999", "GiB"),
    ("M=" + "9" * 5000, "a size"),
])
def test_a_value_that_cannot_be_is_refused_with_the_reason(call, file, text, says):
    status, _, err = call("run", file, "matmul", "-D", text)
    assert status == 1 and (says in err or ("T=i32" in text and "T" in err)), err


@pytest.mark.parametrize("command", ["explain", "check"])
def test_what_only_looks_refuses_names_of_nothing_too(call, file, command):
    status, _, err = call(command, file, "bump", "-D", "M=3")
    assert status == 1 and "size or parameter `M`" in err
    assert call("explain", file, "bump", "-D", "N=-3")[0] == 1


def test_explain_works_formulas_out_where_dimensions_are_one(call, tmp_path):
    (tmp_path / "f.pop").write_text("op f(X: f32[M, N]) -> (Y: f32[M, N]) { Y[i, j] = 2 * X[i, j] }")
    assert "4*M_N bytes of results  = 60" in call("explain", str(tmp_path / "f.pop"), "-D", "M=3", "-D", "N=5")[1]


def test_an_unmet_condition_names_the_operator_and_the_sizes(call, file):
    status, _, err = call("run", file, "scaled", "-D", "n=2", "-D", "steps=0")
    assert status == 1 and "steps" in err


def test_arrays_that_cannot_be_read_are_refused(call, file, tmp_path):
    pickled, text, two = tmp_path / "pickled.npy", tmp_path / "text.npy", tmp_path / "two.npz"
    np.save(pickled, np.array([print, None], dtype=object), allow_pickle=True)
    text.write_text("no array")
    np.savez(two, a=np.ones(1), b=np.ones(1))
    two.rename(tmp_path / "two.npy")
    (tmp_path / "folder.npy").mkdir()
    for name in ("pickled", "text", "two", "folder", "missing"):
        status, _, err = call("run", file, "matmul", "-D", f"A={tmp_path / name}.npy")
        assert status == 1 and "E911" in err, name


def test_an_array_of_the_wrong_rank_or_dtype_is_refused(call, file, tmp_path):
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    np.save(tmp_path / "c.npy", np.ones((3, 3), np.complex64))
    for name in "xc":
        status, _, err = call("run", file, "matmul", "-D", f"A={tmp_path / name}.npy")
        assert status == 1 and "`A`" in err


@pytest.mark.parametrize("arguments", [("nonsense",), ("run",), ("run", "relu", "--seed", "x"), ("show", "relu", "--rung", "top"),
                                       ("cache", "burn"), ("run", "relu", "--rank", "-1")])
def test_a_wrong_command_line_has_status_2(call, arguments):
    assert call(*arguments)[0] == 2


def test_an_unknown_target_is_answered_with_the_known_ones(call):
    status, _, err = call("show", "relu", "--target", "cuda:sm_1")
    assert status == 1 and "cuda:sm_80" in err


def test_a_results_folder_that_cannot_be_made_is_reported(call, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = call("run", "relu", "--out", str(tmp_path / "file" / "folder"))
    assert status in (1, 2) and "error" in err.lower()


def test_a_bug_gets_one_line_that_says_so(call, monkeypatch):
    monkeypatch.setattr("polyop.cli.run.trial", lambda *_, **__: 1 // 0)
    status, _, err = call("run", "relu")
    assert status == 1 and "a bug of polyop" in err and "ZeroDivisionError" in err


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    env = {**os.environ, "POLYOP_CACHE_DIR": str(tmp_path)}
    shell = f"{sys.executable} -m polyop.cli library linalg | head -1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=env)
    assert "Traceback" not in done.stderr and done.stdout.startswith("#")


@pytest.mark.parametrize("closed", ["<&-", "</dev/null >&-", "</dev/null 2>&-"])
def test_a_stream_that_is_closed_is_an_empty_one(closed):
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m polyop.cli check - {closed}"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr and done.stdout in ("", "<stdin> defines no operator\n")


def test_who_stops_a_command_while_it_starts_gets_one_line(capsys, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt
    monkeypatch.setitem(sys.modules, "polyop.cli.commands", SimpleNamespace(answer=stopped))
    with pytest.raises(SystemExit) as exited:
        cli.main([])
    assert exited.value.code == 130 and capsys.readouterr().err == "stopped\n"


def test_a_program_may_come_through_a_pipe_for_every_command(call, monkeypatch):
    for command in (["check"], ["check", "bump"], ["show", "bump"], ["run", "bump", "--check"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + PROGRAM.encode())))
        status, _, err = call(command[0], "-", *command[1:])
        assert status == 0, err


def test_what_comes_through_a_pipe_is_a_text_of_bounded_length(call, monkeypatch):
    for data, says in ((b"op f(\xff", "<stdin> is no text: byte 5 is not UTF-8"), (b"#" * 2_000_000, "<stdin> is longer than")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert says in call("check", "-")[2]
    assert "/dev/zero is longer than" in call("check", "/dev/zero")[2]


def test_nothing_in_a_users_text_reaches_the_terminal_as_a_command(call, tmp_path):
    (tmp_path / "odd.pop").write_text("op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = \x1b[31mX[i] }")
    err = call("check", str(tmp_path / "odd.pop"))[2]
    assert "U+001B" in err and "\x1b" not in err and "\ufffd[31mX[i]" in err


def test_absurd_sizes_are_refused_in_words(call, tmp_path):
    def run(dims, *given):
        sizes, places = (", ".join(f"{c}{k}" for k in range(dims)) for c in "Ni")
        (tmp_path / "many.pop").write_text(f"op f(X: f32[{sizes}]) -> (y: f32) {{ y += X[{places}] }}")
        return call("run", str(tmp_path / "many.pop"), *given)[2]

    assert "would take 2^1202 bytes" in run(60, *(f"-DN{k}={1 << 20}" for k in range(60)))
    assert "`X` has 200 dimensions; NumPy has at most" in run(200)


@pytest.fixture
def compiler():
    try:
        cxx.compiler()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("compiler")
def test_for_a_gpu_an_operator_runs_on_the_emulator_and_is_checked(call, file):
    scaled = [file, "scaled", "-D", "n=3", "-D", "N=0"]
    for arguments in (["softmax", "-D", "C=5"], [file, "matmul", "-D", "T=f16", "-D", "M=9"], scaled, [file, "bump"]):
        for target, orders in (("cuda:sm_80", 6), ("hip:gfx942", 3)):
            status, out, err = call("run", *arguments, "--target", target, "--emulate", "--check")
            where = f"on the emulator of {target} in {orders} orders, which saw no fault"
            assert status == 0 and where in " ".join(out.split()) and "\nright" in out, err
            assert out.count("shared memory takes") + out.count("shared memory is not used") == 1


@pytest.mark.usefixtures("compiler")
def test_lanes_that_meet_in_a_bank_are_told_by_line_of_the_text(call, tmp_path):
    (tmp_path / "t.pop").write_text("op turned(X: f32[M, N]) -> (Y: f32[N, M]) { Y[n, m] = X[m, n] }")
    turned = ["run", str(tmp_path / "t.pop"), "-D", "M=40", "-D", "N=40", "--target", "cuda:sm_80", "--emulate"]
    assert "no lanes meet in a bank" in call(*turned, "--check")[1] and "shared memory" not in call(*turned)[1]
    rows = [Traffic(k, f"a{k}", False, 1, 2, 2 + k) for k in range(8)]
    assert in_words(tuple(rows)).splitlines() == [
        "shared memory takes 44 cycles: 64% of them lost as lanes meet in a bank",
        *(f"  line {k}: read x1, {1 + k / 2:.2f} ways: `a{k}`" for k in (7, 6, 5, 4, 3)), "  and 2 more lines"]


@pytest.mark.usefixtures("compiler")
def test_products_may_be_rounded_as_a_gpu_s_units_do_where_that_is_said(call):
    product = ["matmul", "-D", "T=f32", "--target", "cuda:sm_80"]
    status, out, err = call("run", *product, "--emulate", "--check", "--numerics", "tf32")
    assert status == 0 and "right" in out, err
    units = {n: "tf32" in call("explain", *product, "--numerics", n)[1]
             for n in ("fast", "tf32")}
    assert units == {"fast": False, "tf32": True}
    assert "'exact' is not one of" in call("run", "matmul", "--numerics", "exact")[2]


def test_sums_over_windows_take_fewer_multiplications_where_that_is_said(call):
    given = ("T=f32", "B=1", "H=58", "W=58", "C=32", "K=32", "R=3", "S=3")
    asked = ["conv2d_nhwc", *(x for g in given for x in ("-D", g)), "--numerics", "winograd"]
    status, out, err = call("run", *asked)
    assert status == 0 and "1 x 56 x 56 x 32" in out, err
    assert "with fewer multiplications" in call("explain", *asked)[1]


def test_without_a_device_a_gpu_is_emulated(call):
    status, out, err = call("run", "softmax", "-D", "C=5", "--target", "cuda:sm_80")
    assert status == 0 and "on the emulator of cuda:sm_80, which saw no fault" in " ".join(out.split()), err


@pytest.mark.usefixtures("compiler")
def test_what_lies_outside_is_told_on_the_emulator_too(call):
    assert "reads outside `E`, which has V = 0 rows" in call("run", "embedding", "-D", "V=0", "--target", "cuda:sm_80")[2]


def test_a_gpu_is_named_in_full_and_not_timed(call):
    assert "say which: cuda:sm_80, cuda:sm_90" in call("run", "softmax", "--target", "cuda")[2]
    assert "E914" in call("run", "softmax", "--target", "cuda:sm_80", "--time")[2]
    assert "E914" in call("run", "softmax", "--emulate")[2]


def test_without_a_compiler_the_emulator_says_what_it_needs(call, monkeypatch):
    monkeypatch.setattr(cxx, "compiler", lambda: (_ for _ in ()).throw(UnsupportedError("the emulator needs a C++ compiler")))
    status, _, err = call("run", "softmax", "--target", "cuda:sm_80")
    assert status == 1 and "the emulator needs a C++ compiler" in err


def test_the_list_of_commands_has_each_of_them():
    for name in COMMANDS:
        found = commands.get_command(None, name)
        assert found.name == name and found.help
    assert commands.list_commands(None) == sorted(COMMANDS) and commands.get_command(None, "nothing") is None
