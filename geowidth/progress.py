"""Progress with time left: a bar on a terminal, a plain line now and then elsewhere."""

import os
import re
import sys
import time
from typing import TextIO

from geowidth import ranks

# Control characters but the end of a line, marks that turn the direction of writing, and what has no width.
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def printable(text: str) -> str:
    """`text` with every control character shown as an escape, such as \\x1b."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class Progress:
    """Counts `total` units of work.

    On a terminal this is a tqdm bar; otherwise a line is printed at most every `every` seconds (and at the end). Both
    go to standard error, so standard output stays for results. Of the processes of one job only the first shows it.

        with Progress(10, "measure", unit="layer") as progress:
            for layer in range(10):
                ...
                progress.step(text="layer 3 of 10")
    """

    def __init__(
        self, total: int, label: str, unit: str = "step", every: float = 10.0, stream: TextIO | None = None
    ) -> None:
        self.total, self.label, self.unit, self.every = total, printable(label), unit, every
        self.stream = stream or sys.stderr
        self.done = self.resumed = 0
        self.start = self.last = time.monotonic()
        self.bar, self.shown = None, ranks.is_first()
        if self.shown and self.stream.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=total, desc=label, unit=unit, file=self.stream, dynamic_ncols=True)

    def resume_at(self, done: int) -> None:
        """Say that `done` units were finished by an earlier run: they count as done, not towards the speed."""
        self.done = self.resumed = done
        if self.bar is not None:
            self.bar.initial = done
            self.bar.n = done
            self.bar.refresh()

    def step(self, count: int = 1, text: str = "") -> None:
        """Count `count` more units; `text` (loss, speed) is shown beside them."""
        self.done += count
        if self.bar is not None:
            if text:
                self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(count)
            return
        now = time.monotonic()
        if self.shown and (now - self.last >= self.every or self.done == self.total):
            self.last = now
            self._line(text)

    def _line(self, text):
        spent = time.monotonic() - self.start
        speed = (self.done - self.resumed) / spent if spent > 0 else 0
        left = f", {duration((self.total - self.done) / speed)} left" if speed and self.done < self.total else ""
        words = f"{self.label}: {self.done}/{self.total} {self.unit}s, {duration(spent)}{left}"
        tell(words + (f", {text}" if text else ""), self.stream)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tell(line: str, stream: TextIO | None = None) -> None:
    """Print a line of progress (default: on standard error). That its reader went away, or that the disk behind it is
    full, does not stop the work."""
    stream = stream or sys.stderr
    try:
        print(printable(line), file=stream, flush=True)
    except OSError:  # what is left in the buffer, and all lines to come, go nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def duration(seconds: float) -> str:
    """Seconds as people say them: '45 s', '3 min 20 s', '2 h 5 min'."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def size(count: float) -> str:
    """Bytes as people say them: '512 B', '3.4 MB', '29.2 GB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    raise AssertionError("the loop returns at GB")
