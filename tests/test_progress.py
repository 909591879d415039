"""Progress as a log file and as a terminal see it."""

import io
import os

import pytest

from geowidth import progress
from geowidth.progress import Progress, duration, tell


@pytest.fixture
def clock(monkeypatch):
    """A clock that is moved by hand."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_now_and_then_with_the_time_left(clock):
    stream = io.StringIO()
    with Progress(10, "train", stream=stream) as bar:
        for step in range(10):
            clock[0] += 6
            bar.step(text=f"loss {step}")
    assert stream.getvalue().splitlines() == [
        "train: 2/10 steps, 12 s, 48 s left, loss 1",
        "train: 4/10 steps, 24 s, 36 s left, loss 3",
        "train: 6/10 steps, 36 s, 24 s left, loss 5",
        "train: 8/10 steps, 48 s, 12 s left, loss 7",
        "train: 10/10 steps, 1 min 0 s, loss 9",
    ]


def test_what_an_earlier_run_did_does_not_count_towards_the_speed(clock):
    stream = io.StringIO()
    bar = Progress(100, "measure", unit="layer", stream=stream)
    bar.resume_at(90)
    clock[0] += 20
    bar.step(2)
    assert stream.getvalue() == "measure: 92/100 layers, 20 s, 1 min 20 s left\n"


def test_a_terminal_gets_a_bar_with_the_time_left():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with Progress(4, "train", stream=stream) as bar:
        bar.resume_at(1)
        for _ in range(3):
            bar.step(text="loss 2.5, 900 tokens/s")
    last = stream.getvalue().rsplit("\r", 1)[-1]
    assert "train: 100%" in last and "4/4" in last and "<" in last and "loss 2.5, 900 tokens/s" in last


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_a_reader_that_goes_away_does_not_stop_the_work():
    """`geowidth run 2>&1 | head -1` trains to the end."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        os.close(reader)
        tell("[1/5] train", stream)
        bar = Progress(2, "train", every=0.0, stream=stream)
        bar.step()
        bar.step()
    assert bar.done == 2
