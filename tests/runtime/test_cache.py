"""The disk cache: never wrong, never in the way."""

import json
import logging
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from polyop.runtime import cache, cpu, store
from polyop.runtime.bind import bind
from polyop.runtime.kernel import kernel
from tests.children import finished
from tests.runtime import modules

NAME = cache.key("test")


@pytest.fixture(scope="module")
def saxpy():
    return kernel(cpu.assemble(modules.saxpy(), cpu.host()), notes=("rows",))


def works(k):
    x = np.arange(5, dtype=np.float32)
    return (k(bind(modules.SAXPY, {"X": x, "Y": x, "a": 2})) == 3 * x).all()


def the_file(own_cache):
    (path,) = own_cache.iterdir()
    return path


def test_a_kernel_comes_back_from_disk_as_it_was(saxpy):
    store.write(NAME, saxpy)
    found = store.read(NAME)
    assert (found.binary, found.proofs, found.notes) == (saxpy.binary, saxpy.proofs, saxpy.notes)
    assert works(found)


def test_a_kernel_that_was_never_stored_is_not_found(own_cache):
    assert store.read(NAME) is None
    assert not own_cache.exists()


def test_keys_differ_if_any_part_does():
    assert len({cache.key("a", "b"), cache.key("ab"), cache.key("a", "b", ""), cache.key("b", "a")}) == 4


def test_a_file_with_any_byte_changed_is_ignored_and_replaced(saxpy, own_cache, caplog):
    store.write(NAME, saxpy)
    path = the_file(own_cache)
    good, chance = path.read_bytes(), random.Random(1)
    places = [0, 8, 9, 40, 73, 74, 80, *(chance.randrange(len(good)) for _ in range(200)), len(good) - 1]
    for at in places:
        bad = bytearray(good)
        bad[at] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        assert store.read(NAME) is None, at
    assert "ignoring the damaged cache file" in caplog.text
    made = []
    assert works(store.find(NAME, lambda: made.append(1) or saxpy))
    assert made and path.read_bytes() == good


def test_a_file_cut_short_or_grown_is_ignored(saxpy, own_cache):
    store.write(NAME, saxpy)
    path = the_file(own_cache)
    good = path.read_bytes()
    for bad in (b"", b"\n", good[:5], good[:70], good[:-1], good + b"x", good[:500], b"polyop 1\n", b"\x7fELF" + good):
        path.write_bytes(bad)
        assert store.read(NAME) is None


def test_a_folder_or_a_dangling_link_in_the_place_of_a_file_does_no_harm(saxpy, own_cache, caplog):
    path = own_cache / (NAME + ".pok")
    path.mkdir(parents=True)
    assert works(store.find(NAME, lambda: saxpy))
    assert "cannot be written" in caplog.text
    path.rmdir()
    path.symlink_to(own_cache / "nowhere")
    assert store.read(NAME) is None
    store.write(NAME, saxpy)
    assert works(store.read(NAME))


def forged(header, code):
    cache.write(NAME, header, code)
    return store.read(NAME)


def test_a_well_formed_file_with_a_foreign_header_is_ignored(saxpy, own_cache):
    store.write(NAME, saxpy)
    header, code = cache.read(NAME)
    for change in ({"name": 3}, {"signature": None}, {"signature": {"Popen": ["x"]}}, {"proofs": {}}, {"proofs": [1]},
                   {"notes": [None]}, {"target": "x86:no-such"}, {"name": "other"}):
        assert forged({**header, **change}, code) is None
    assert forged(header, b"not an object") is None
    assert forged({}, code) is None
    assert works(forged(header, code))


def test_a_target_this_machine_cannot_run_is_ignored(saxpy, monkeypatch):
    store.write(NAME, saxpy)
    header, code = cache.read(NAME)
    monkeypatch.setattr(cpu, "cpu_features", dict)
    assert forged({**header, "target": "x86:x86-64-v4"}, code) is None


@pytest.mark.parametrize("how", ["file", "readonly"])
def test_a_folder_that_cannot_be_written_costs_a_warning(saxpy, tmp_path, monkeypatch, caplog, how):
    place = tmp_path / "locked"
    if how == "file":
        place.write_text("not a folder")
    else:
        monkeypatch.setattr(cache.tempfile, "mkstemp", lambda **_: (_ for _ in ()).throw(PermissionError("read-only")))
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(place))
    cache._warn.cache_clear()
    with caplog.at_level(logging.WARNING, "polyop"):
        assert works(store.find(NAME, lambda: saxpy))
        store.write(NAME, saxpy)
    assert caplog.text.count("cannot be written") == 1


def test_the_least_recently_used_entries_go_first(own_cache, monkeypatch):
    names = [cache.key(str(k)) for k in range(6)]
    monkeypatch.setenv("POLYOP_CACHE_SIZE", "5500")
    for k, n in enumerate(names[:5]):
        cache.write(n, {}, bytes(1000))
        os.utime(own_cache / (n + ".pok"), (k, k))
    assert cache.read(names[0])  # used just now
    cache.write(names[5], {}, bytes(1000))
    assert [cache.read(n) is not None for n in names] == [True, False, True, True, True, True]
    cache.write(cache.key("big"), {}, bytes(9000))
    assert cache.read(cache.key("big")) is None
    assert cache.read(names[5])


def test_the_folder_is_looked_at_when_it_may_be_full_and_not_at_each_entry(own_cache, monkeypatch):
    looks, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda where: looks.append(where) or scandir(where))
    monkeypatch.setenv("POLYOP_CACHE_SIZE", "64000")
    cache.key("sources")  # which looks elsewhere
    looks.clear()
    for k in range(600):
        cache.write(cache.key(str(k)), {}, bytes(100))
        assert sum(p.stat().st_size for p in own_cache.iterdir()) <= 64000
    assert 10 < len(looks) < 200
    assert cache.read(cache.key("599")) and not cache.read(cache.key("0"))


def test_what_a_crashed_writer_left_is_removed_in_time(own_cache):
    own_cache.mkdir()
    old, new = own_cache / ".new-old", own_cache / ".new-new"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1, 1))
    cache.write(NAME, {}, b"")
    assert (old.exists(), new.exists()) == (False, True)


def test_a_cache_of_size_0_is_off(saxpy, own_cache, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_SIZE", "0")
    store.write(NAME, saxpy)
    assert store.read(NAME) is None and not own_cache.exists()


def test_a_size_that_is_no_number_is_told_and_not_obeyed(monkeypatch, caplog):
    monkeypatch.setenv("POLYOP_CACHE_SIZE", "much")
    cache._bytes.cache_clear()
    assert cache.limit() == cache.limit() == 1 << 30
    assert caplog.text.count("POLYOP_CACHE_SIZE is much, which is no number of bytes") == 1


def test_a_lock_that_another_thread_holds_does_not_survive_a_fork():
    memo, inside, leave = store.Memo(), threading.Event(), threading.Event()
    holder = threading.Thread(target=lambda: memo.get("k", lambda: (inside.set(), leave.wait(10))))
    holder.start()
    inside.wait(10)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if memo.get("k", lambda: 7) == 7 else 1)
    assert finished(pid) == 0
    leave.set()
    holder.join()


def test_threads_that_ask_for_one_key_make_it_once(saxpy):
    made, got = [], []

    def make():
        made.append(1)
        time.sleep(0.05)
        return saxpy
    asking = [threading.Thread(target=lambda: got.append(store.find(NAME, make))) for _ in range(8)]
    for t in asking:
        t.start()
    for t in asking:
        t.join()
    assert len(made) == 1 and got == [saxpy] * 8


def test_a_key_that_could_not_be_made_can_be_tried_again(saxpy):
    with pytest.raises(ZeroDivisionError):
        store.find(NAME, lambda: 1 / 0)
    assert store.find(NAME, lambda: saxpy) is saxpy


def test_different_keys_are_made_at_the_same_time():
    memo, together = store.Memo(), threading.Barrier(2, timeout=5)
    got = []
    both = [threading.Thread(target=lambda k=k: got.append(memo.get(k, lambda: together.wait() >= 0))) for k in "ab"]
    for t in both:
        t.start()
    for t in both:
        t.join()
    assert got == [True, True]


_WRITER = """
import sys
from polyop.runtime import cache
name = cache.key("race")
for k in range(150):
    cache.write(name, {"k": k}, bytes([k]) * 20000)
    found = cache.read(name)
    assert found is not None and found[1] == bytes([found[0]["k"]]) * 20000
"""


def test_processes_that_write_one_key_never_see_half_a_file(own_cache):
    running = [subprocess.Popen([sys.executable, "-c", _WRITER], stderr=subprocess.PIPE) for _ in range(2)]
    assert [p.communicate()[1] for p in running] == [b"", b""]
    assert [p.name[-4:] for p in own_cache.iterdir()] == [".pok"]


def test_a_header_is_json_and_nothing_else(saxpy, own_cache):
    store.write(NAME, saxpy)
    raw = the_file(own_cache).read_bytes()
    size = int(raw.split(b"\n", 3)[2])
    json.loads(raw.split(b"\n", 3)[3][:size])


def test_a_pipe_or_device_in_the_place_of_an_entry_is_not_read(saxpy, own_cache):
    own_cache.mkdir(parents=True, exist_ok=True)
    for make in (os.mkfifo, lambda p: os.symlink("/dev/zero", p)):
        path = own_cache / f"{NAME}.pok"
        make(path)
        assert cache.read(NAME) is None
        store.write(NAME, saxpy)
        assert path.is_file() and not path.is_symlink() and cache.read(NAME) is not None
        path.unlink()


MAKER = """
import sys, time
from pathlib import Path
from polyop.runtime import cache, cpu, store
from polyop.runtime.kernel import kernel
from tests.runtime import modules

def make():
    with open(sys.argv[2], "a") as f:
        f.write("made\\n")
    time.sleep(0.3)
    return kernel(cpu.assemble(modules.saxpy(), cpu.host()))

Path(sys.argv[2] + f".ready{sys.argv[3]}").touch()
while not all(Path(sys.argv[2] + f".ready{n}").exists() for n in "01"):
    time.sleep(0.001)
store.find(sys.argv[1], make)
"""


def run_two(own_cache, tmp_path):
    made = tmp_path / "made"
    env = {**os.environ, "POLYOP_CACHE_DIR": str(own_cache)}
    both = [subprocess.Popen([sys.executable, "-c", MAKER, NAME, str(made), n], env=env) for n in "01"]
    assert [p.wait(60) for p in both] == [0, 0]
    return made.read_text().count("made")


def test_two_processes_that_want_a_kernel_at_once_make_it_once(own_cache, tmp_path):
    assert run_two(own_cache, tmp_path) == 1


def test_where_nothing_can_be_locked_each_process_makes_its_own(own_cache, tmp_path):
    own_cache.write_text("a file where the folder should be")
    assert run_two(own_cache, tmp_path) == 2


def test_nobody_waits_for_ever_for_another_process(own_cache, monkeypatch):
    monkeypatch.setattr(cache, "_PATIENCE", 0.05)
    with cache.making(NAME):
        start = time.monotonic()
        with cache.making(NAME):
            assert time.monotonic() - start < 10


def test_code_that_is_no_kernel_has_files_of_its_own_sort(own_cache, saxpy):
    store.write(NAME, saxpy)
    assert cache.remember_code(NAME, lambda: b"code") == b"code" == cache.remember_code(NAME, lambda: b"other")
    assert sorted(p.suffix for p in cache.entries()) == [cache.CODE, cache.KERNEL]
    assert store.read(NAME) is not None
