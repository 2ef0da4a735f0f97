"""This machine as a target; text to code; code to addresses."""

import ctypes
import platform
from dataclasses import replace

import pytest

from polyop.ir.dots import dot
from polyop.ir.dtypes import BF16, F32
from polyop.ir.errors import InternalError, UnsupportedError, UserError
from polyop.ir.module import Binary, Module, Signature
from polyop.ir.target import ACROSS, HINTS, PAGES_MEET, STAYS, USUAL_HINTS, target
from polyop.runtime import cpu, cpu_passes
from polyop.runtime.kernel import kernel
from tests.runtime import modules

NONE = Signature("f", (), (), (), ())


def test_this_machine_is_a_row_with_what_cpuid_reports():
    t = cpu.host()
    assert (t.name, t.family) == ("x86:host", "x86")
    flags = t.features.split(",")
    assert all(f[0] in "+-" for f in flags)
    assert ("+avx2" in flags) == cpu.cpu_features()["avx2"]
    assert t.vector_bytes == (64 if "+avx512vl" in flags else 32 if "+avx2" in flags else 16)
    assert 8 << 10 <= t.l1 <= t.l2 <= 1 << 30


def test_string_instructions_are_fast_where_the_system_says_so(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags\t\t: fpu erms fsrm\nbugs\t:\n")
    assert cpu._flags(tmp_path / "cpuinfo") == {"fpu", "erms", "fsrm"}
    (tmp_path / "cpuinfo").write_text("processor : 0\n")
    assert cpu._flags(tmp_path / "cpuinfo") == cpu._flags(tmp_path / "absent") == frozenset()


def test_a_row_says_no_feature_of_its_level_that_this_has_not():
    assert all(set(target(f"x86:{level}").implied) <= set(needs) for level, needs in cpu.LEVELS.items())
    assert target("x86:x86-64-v3").has("avx2") and not target("x86:x86-64-v2").has("avx2")


def test_every_level_implies_the_ones_below():
    assert set(cpu.LEVELS["x86-64-v2"]) < set(cpu.LEVELS["x86-64-v3"]) < set(cpu.LEVELS["x86-64-v4"])


@pytest.mark.parametrize(("masked", "level"), [((), "x86-64-v4"), (("avx512vl",), "x86-64-v3"), (("avx2",), "x86-64-v2"),
                                               (("ssse3",), None)])
def test_a_masked_feature_lowers_the_level(monkeypatch, masked, level):
    has = {f: f not in masked for f in cpu.LEVELS["x86-64-v4"]}
    monkeypatch.setattr(cpu, "cpu_features", lambda: has)
    t = cpu.host.__wrapped__()
    row = target(f"x86:{level}") if level else None
    assert (t.vector_bytes, t.registers) == ((row.vector_bytes, row.registers) if row else (16, 16))
    assert all(f"-{f}" in t.features.split(",") for f in masked)


def test_a_processor_that_wants_other_hints_has_them(monkeypatch):
    for arch in ("znver3", "znver4", "sapphirerapids"):
        monkeypatch.setattr(cpu.llvm, "get_host_cpu_name", lambda arch=arch: arch)
        t = cpu.host.__wrapped__()
        assert (t.arch, t.hints, t.pages_meet) == (arch, HINTS.get(arch, USUAL_HINTS), arch in PAGES_MEET)
        assert t.stays == STAYS.get(arch, 0)
        assert t.across == (arch in ACROSS or t.vector_bytes == 32)


@pytest.mark.parametrize(("arch", "tiles", "slow"), [("emeraldrapids", False, {"vdpbf16ps"}), ("emeraldrapids", True, set()),
                                                    ("znver4", False, set())])
def test_what_is_slow_is_said_where_nothing_faster_is(monkeypatch, arch, tiles, slow):
    monkeypatch.setattr(cpu.llvm, "get_host_cpu_name", lambda: arch)
    has = dict.fromkeys(cpu.LEVELS["x86-64-v4"], True) | {"avx512bf16": True, "amx-tile": tiles}
    monkeypatch.setattr(cpu, "cpu_features", lambda: has)
    t = cpu.host.__wrapped__()
    assert t.slow == slow
    assert (dot(t, t.vector_bytes, F32, BF16, BF16, strict=False) is None) == bool(slow)


def test_another_kind_of_machine_is_refused(monkeypatch):
    monkeypatch.setattr(cpu.llvm, "get_process_triple", lambda: "aarch64-unknown-linux-gnu")
    with pytest.raises(UnsupportedError, match="kernels for x86 run on x86-64 only"):
        cpu.host.__wrapped__()


def test_cache_sizes_are_read_and_a_shared_one_is_divided(tmp_path):
    for k, (level, kind, size, cpus) in enumerate([("1", "Data", "48K", "0-1"), ("1", "Instruction", "32K", "0-1"),
                                                   ("2", "Unified", "2048K", "0-1"), ("3", "Unified", "32M", "0-3,8-11"),
                                                   ("3", "Unified", "what", "0")]):
        folder = tmp_path / f"index{k}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", cpus)):
            (folder / name).write_text(text + "\n")
    (tmp_path / "index9").mkdir()
    assert cpu._cache_sizes(tmp_path) == {"l1": 48 << 10, "l2": 2 << 20, "l3": 4 << 20}
    assert cpu._cache_sizes(tmp_path / "absent") == {}


def test_no_core_counts_on_all_of_a_cache_that_others_share(monkeypatch):
    """Two cores of a virtual machine are told of 300 MB, which sixty cores of the processor share."""
    for told, found in ((150 << 20, 16 << 20), (4 << 20, 4 << 20)):
        monkeypatch.setattr(cpu, "_cache_sizes", lambda told=told: {"l1": 48 << 10, "l2": 2 << 20, "l3": told})
        t = cpu.host.__wrapped__()
        assert (t.l1, t.l2, t.l3) == (48 << 10, 2 << 20, found)


def test_a_target_is_found_by_its_name():
    assert cpu.resolve("x86") == cpu.host()
    assert cpu.resolve("x86:x86-64-v3") == target("x86:x86-64-v3")
    with pytest.raises(UserError, match="no target"):
        cpu.resolve("x87")


def test_only_targets_whose_features_are_here_run_here(monkeypatch):
    assert cpu.runs_here(cpu.host())
    assert not cpu.runs_here(target("cuda:sm_80"))
    monkeypatch.setattr(cpu, "cpu_features", lambda: dict.fromkeys(cpu.LEVELS["x86-64-v3"], True))
    assert cpu.runs_here(target("x86:x86-64-v3"))
    assert not cpu.runs_here(target("x86:x86-64-v4"))


def test_code_for_one_target_is_the_same_before_and_after_code_for_another():
    names = ("x86:x86-64-v4", "x86:x86-64-v2", "x86:x86-64-v4", "x86:x86-64-v2")
    first, second, *again = (cpu.assemble(modules.saxpy(), cpu.resolve(n)).code for n in names)
    assert again == [first, second] and first != second


def test_a_kernel_for_another_machine_is_not_loaded():
    with pytest.raises(UnsupportedError, match="was compiled for cuda:sm_80"):
        kernel(Binary("f", "cuda:sm_80", b"", NONE))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="assembles for x86-64")
@pytest.mark.parametrize("name", ["x86", "x86:x86-64-v2", "x86:x86-64-v3", "x86:x86-64-v4"])
def test_every_x86_target_can_be_assembled_for_without_having_it(name):
    assert cpu.assemble(modules.saxpy(), cpu.resolve(name)).code.startswith(b"\x7fELF")


@pytest.mark.parametrize("text", ["rubbish", "define i64 @f(ptr %a) { ret i64 %b }", "define i64 @f(ptr %a) {\nentry:\n}"])
def test_text_that_llvm_refuses_is_a_bug_of_ours(text):
    with pytest.raises(InternalError, match="LLVM refuses f"):
        cpu.assemble(Module("f", "x86:host", text, NONE), cpu.host())


def test_the_switches_of_llvm_are_put_back_even_after_a_mistake(monkeypatch):
    seen = []
    monkeypatch.setattr(cpu_passes.llvm, "set_option", lambda _, text: seen.append(text))
    with pytest.raises(ValueError), cpu_passes.quick(5000):
        assert seen == ["-disable-lsr=true"]
        raise ValueError
    assert seen == ["-disable-lsr=true", "-disable-lsr=false"]


@pytest.mark.parametrize(("lines", "switches"), [(1, 4), (20_000, 6)])
def test_the_longer_a_kernel_the_fewer_passes_compile_it(monkeypatch, lines, switches):
    seen = []
    monkeypatch.setattr(cpu_passes.llvm, "set_option", lambda _, text: seen.append(text))
    text = modules.saxpy().text + "\n; a comment" * lines
    assert cpu.assemble(replace(modules.saxpy(), text=text), cpu.host()).code == cpu.assemble(modules.saxpy(), cpu.host()).code
    assert len(seen) == switches


def test_code_that_does_not_link_is_a_bug_of_ours():
    text = "declare i64 @no_such_function()\ndefine i64 @f(ptr %a) {\n  %r = call i64 @no_such_function()\n  ret i64 %r\n}"
    binary = cpu.assemble(Module("f", "x86:host", text, NONE), cpu.host())
    with pytest.raises(InternalError, match="cannot link f"):
        cpu.load(binary)
    with pytest.raises(InternalError, match="cannot link f"):
        cpu.load(Binary("f", "x86:host", b"\x7fELF rubbish", NONE))


def test_two_kernels_of_one_name_live_side_by_side():
    def constant(n):
        text = f"define i64 @f(ptr %a) {{\n  ret i64 {n}\n}}"
        return cpu.load(cpu.assemble(Module("f", "x86:host", text, NONE), cpu.host()))
    loaded = [constant(n) for n in range(5)]
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    assert [call(x.addresses["f"])(None) for x in loaded] == list(range(5))


def test_the_c_library_is_there_for_kernels():
    text = """
declare double @exp(double)
define i64 @f(ptr %a) {
  %e = call double @exp(double 0.0)
  %i = fptosi double %e to i64
  ret i64 %i
}"""
    loaded = cpu.load(cpu.assemble(Module("f", "x86:host", text, NONE), cpu.host()))
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(loaded.addresses["f"])(None) == 1
