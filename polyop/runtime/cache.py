"""Compiled kernels on disk: one file for each key, written whole or not at all, never trusted.

A file is  `polyop 1\n`, the sha256 of the rest in hex, `\n`, the length of a JSON header, `\n`, the header, then bytes.
Nothing in it is executed before the checksum, the header and every type in it were found right; a file that is not is
as good as absent and is overwritten.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import platformdirs

log = logging.getLogger("polyop")

_MAGIC = b"polyop 1\n"
_VERSION = "1"
KERNEL, CODE = ".pok", ".poc"  # an entry with a header that describes a kernel, and one of code alone
_PATIENCE = 20.0  # seconds: longer than any compile, and short for somebody whose other process hangs


def key(*parts: str) -> str:
    """The name of a cache entry: equal exactly if all parts are, and polyop itself."""
    text = "\0".join((_VERSION, _sources(), *parts))
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1)
def _sources() -> str:
    """A hash of polyop's own files: a changed compiler never finds what an older one has made."""
    digest = hashlib.sha256()
    folders = [Path(__file__).parents[1]]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for e in sorted(entries, key=lambda e: e.name):
                if e.is_dir():
                    folders += [Path(e.path)] if e.name != "__pycache__" else []
                elif e.name.endswith((".py", ".ll", ".lark", ".pop", ".h")):
                    stat = e.stat()
                    digest.update(f"{e.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def folder() -> Path:
    """Where the cache lies: POLYOP_CACHE_DIR, else what the platform says."""
    return Path(os.environ.get("POLYOP_CACHE_DIR") or platformdirs.user_cache_dir("polyop"))


def limit() -> int:
    """Bytes the cache may take: POLYOP_CACHE_SIZE, 1 GiB by default, 0 for none."""
    return _bytes(os.environ.get("POLYOP_CACHE_SIZE", ""))


@lru_cache(maxsize=8)
def _bytes(text: str) -> int:
    if text and not text.isdigit():
        log.warning("POLYOP_CACHE_SIZE is %s, which is no number of bytes; the cache takes up to 1 GiB", text)
    return int(text) if text.isdigit() else 1 << 30


def entries() -> tuple[Path, ...]:
    """The files of the cache, oldest use first."""
    where = folder()
    found = [p for p in where.iterdir() if p.suffix in (KERNEL, CODE)] if where.is_dir() else []
    return tuple(sorted(found, key=lambda p: p.stat().st_mtime_ns))


def read(name: str, suffix: str = KERNEL) -> tuple[dict[str, Any], bytes] | None:
    """Header and bytes of the entry `name`, or None if there is none that is whole."""
    if not limit():
        return None
    path = folder() / (name + suffix)
    try:
        if not path.is_file():
            return None  # nothing there, or a pipe or device that would be read for ever
        raw = path.read_bytes()
    except OSError:
        return None
    found = _parse(raw)
    if found is None:
        log.warning("ignoring the damaged cache file %s", path)
        return None
    try:
        os.utime(path)  # the least recently used go first
    except OSError:
        log.debug("cannot touch %s", path)
    return found


def _parse(raw: bytes) -> tuple[dict[str, Any], bytes] | None:
    if not raw.startswith(_MAGIC):
        return None
    digest, _, rest = raw[len(_MAGIC):].partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        return None
    size, _, body = rest.partition(b"\n")
    if not size.isdigit() or int(size) > len(body):
        return None
    try:
        header = json.loads(body[: int(size)])
    except ValueError:
        return None
    return (header, body[int(size):]) if isinstance(header, dict) else None


@contextmanager
def making(name: str) -> Iterator[None]:
    """Inside, this process makes the entry `name`, and others that want it wait, so that it is made once on a machine.

    Nobody waits longer than `_PATIENCE`, and where there can be no locks nobody waits at all: it is then made twice.
    """
    if not limit():
        yield
        return
    import filelock  # on a miss only

    lock = filelock.FileLock(folder() / f".lock-{name[:2]}", timeout=_PATIENCE, poll_interval=0.005)
    try:
        folder().mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError) as e:  # filelock.Timeout is an OSError
        log.debug("no lock for %s: %s", name, e)
    try:
        yield
    finally:
        lock.release()


def write(name: str, header: dict[str, Any], code: bytes, suffix: str = KERNEL) -> None:
    """Store an entry. A cache that cannot be written costs time only, so this never raises: it warns once."""
    most = limit()
    text = json.dumps(header, separators=(",", ":")).encode()
    rest = str(len(text)).encode() + b"\n" + text + code
    raw = _MAGIC + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest
    if len(raw) > most:
        return
    path = folder() / (name + suffix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(raw)
            os.replace(temporary, path)  # readers see the old file or the new one, never a part
        except OSError:
            os.unlink(temporary)
            raise
        _trim(path.parent, most, len(raw))
    except OSError as e:
        _warn(str(folder()), e.strerror or str(e))


@lru_cache(maxsize=8)
def _warn(where: str, reason: str) -> None:
    log.warning("the kernel cache %s cannot be written (%s); compiling goes on without it", where, reason)


_room: dict[Path, int] = {}
"""Bytes that this process may write to a folder before it looks at all of it again."""


def _trim(where: Path, most: int, new: int) -> None:
    """Remove the least recently used entries until less than `most` bytes are left, and what crashed writers left behind.

    new   bytes that were written. To look at thousands of entries takes longer than to write one, so a process looks again only
          when it may have filled the folder, or a part of it as large as what is left free when something is removed
    """
    _room[where] = _room.get(where, 0) - new
    if _room[where] >= 0:
        return
    entries = []
    with os.scandir(where) as found:
        for e in found:
            try:
                stat = e.stat()
                if e.name.startswith(".new-") and time.time() - stat.st_mtime > 3600:
                    os.unlink(e.path)
                elif e.name.endswith((KERNEL, CODE)) and e.is_file():
                    entries.append((stat.st_mtime_ns, stat.st_size, e.path))
            except FileNotFoundError:
                continue  # another process was faster
    total, spare = sum(size for _, size, _ in entries), most // 64
    if total > most:
        for _, size, path in sorted(entries):
            if total <= most - spare:
                break
            Path(path).unlink(missing_ok=True)
            total -= size
    _room[where] = min(most - total, spare)


def remember_code(name: str, make: Callable[[], bytes]) -> bytes:
    """Code without a header: from the cache, or made and stored."""
    found = read(name, CODE)
    if found is not None:
        return found[1]
    code = make()
    write(name, {}, code, CODE)
    return code
