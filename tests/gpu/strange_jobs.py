"""Jobs that are hard on the process they run in."""

from __future__ import annotations

import os
import time
from pathlib import Path


def strange_job(k: int, seen: str) -> int:
    """A job as odd as its number; `seen` is where processes say that they are there."""
    Path(seen, str(os.getpid())).touch()
    if k == 1:
        os._exit(7)
    if k == 2:
        raise ValueError("no such\n thing")
    if k == 3:
        time.sleep(60)
    return 10 * k
