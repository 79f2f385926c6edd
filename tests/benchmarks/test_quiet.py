"""A busy machine is noticed, and a quiet one is not accused."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from minispec import quiet
from minispec.cpu import others


def test_what_others_take_is_all_less_our_own(monkeypatch):
    clocks = {"own": 5.0, "all": 100.0, "wall": 0.0}
    monkeypatch.setattr(others, "_own_seconds", lambda: clocks["own"])
    monkeypatch.setattr(others, "_all_seconds", lambda: clocks["all"])
    monkeypatch.setattr(others.time, "perf_counter", lambda: clocks["wall"])
    watch = quiet.Watch()
    clocks.update(own=15.0, all=113.0, wall=10.0)  # we kept one core busy for ten seconds, others three seconds of one
    assert abs(watch.others() - 0.3) < 1e-9
    clocks.update(own=16.0, all=105.0)  # the kernel's clock is coarse: less than our own is nobody else's
    assert watch.others() == 0


def test_a_system_that_does_not_tell(monkeypatch):
    monkeypatch.setattr(others, "_all_seconds", lambda: None)
    assert quiet.Watch().others() is None
    assert quiet.warning(None, {"plain": 0.1}) is None


def test_either_sign_is_a_warning():
    assert quiet.warning(0.05, {"plain": 0.1, "M = 5": 0.2}) is None
    assert "1.4 cores" in quiet.warning(1.4, {"plain": 0.1})
    assert "M = 5" in quiet.warning(0.0, {"plain": 0.1, "M = 5": 3.0})


def test_a_busy_neighbour_comes_and_goes(monkeypatch):
    made, popen = [], quiet.subprocess.Popen

    def kept(*args):
        made.append(popen(*args))
        return made[-1]

    monkeypatch.setattr(quiet.subprocess, "Popen", kept)
    with quiet.busy_core():
        assert made[0].poll() is None
    assert made[0].poll() is not None


@pytest.mark.slow
def test_a_busy_neighbour_does_not_outlive_a_benchmark_that_is_killed():
    """Its own parent is killed while it is busy; it ends by itself, and closes the pipe that it has inherited."""
    script = "from minispec.quiet import busy_core\nwith busy_core():\n    print('busy', flush=True)\n    input()"
    bench = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert bench.stdout.readline() == b"busy\n"
    bench.kill()
    reader = threading.Thread(target=bench.stdout.read, daemon=True)  # ends when nobody can write any more
    reader.start()
    reader.join(60)
    assert not reader.is_alive()
    bench.stdin.close()
    bench.wait()
