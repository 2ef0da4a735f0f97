"""What strangers write: operators that are not in the library, against plain NumPy, and uses that nobody planned."""

import os
import threading
import time

import numpy as np

import polyop

# --- processes -----------------------------------------------------------------------------------------------------------


def _finished(pid, seconds=30.0):
    """The exit code of a child; None if it hangs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None


def test_a_child_compiles_though_another_thread_was_compiling_when_it_was_forked(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))  # nothing may be found there, so that something is compiled
    x, stop = np.arange(5, dtype=np.float32), threading.Event()

    def compiling():
        k = 0
        while not stop.is_set():
            k += 1
            polyop.op(f"op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) {{ C[m, n] += A[m, k] * B[k, n] + {k} }}")(
                x[:, None], x[None])

    polyop.op("op g(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] }")(x)  # whatever is imported late is imported now
    thread = threading.Thread(target=compiling)
    thread.start()
    try:
        codes = []
        for k in range(3):
            time.sleep(0.1)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    y = polyop.op(f"op g(X: f32[N]) -> (Y: f32[N]) {{ Y[i] = {k + 2} * X[i] }}")(x)
                    code = 0 if (y == (k + 2) * x).all() else 2
                finally:
                    os._exit(code)
            codes.append(_finished(pid))
    finally:
        stop.set()
        thread.join()
    assert codes == [0, 0, 0]
