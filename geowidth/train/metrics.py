"""metrics.jsonl: one object a line, on the disk before a state that stands for it; and TensorBoard beside it."""

import os
from pathlib import Path
from typing import Any

from geowidth import files, forms, records
from geowidth.errors import UserError
from geowidth.forms import COUNT, FINITE, NUMBER, TEXT
from geowidth.train.checkpoint import METRICS_FILE

BOARD = "tensorboard"
# Fields of a line that name it; the others are numbers to plot.
NAMES = ("step", "split", "tokens", "seconds")
LINE = {"step": COUNT, "split": TEXT, "loss": NUMBER, "tokens": COUNT, "seconds": FINITE}


class Metrics:
    """metrics.jsonl, opened for appending after the lines of the first `step` steps.

    A full disk is a UserError at the line it cuts short; what is left can be read, and the run goes on from its state.
    """

    def __init__(self, folder: Path, step: int, board: bool = False) -> None:
        self.path = Path(folder) / METRICS_FILE
        self.board = Board(Path(folder) / BOARD, step) if board else None
        kept = [line for line in self._lines() if line["step"] <= step] if step else []
        records.write_text(self.path, "".join(records.dumps(line) + "\n" for line in kept))
        try:
            self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise files.refusal(self.path, error) from error

    def _lines(self):
        """The lines there, each checked, their steps never falling."""
        lines, last = records.read_json_lines(self.path), 0
        for number, line in enumerate(lines, 1):
            wrong = forms.fault(line, LINE)
            if not wrong and line["step"] < last:
                wrong = f"step {line['step']} comes after step {last}"
            if wrong:
                raise UserError(f"{self.path} line {number} is damaged: {wrong}; delete that line, or the folder")
            last = line["step"]
        return lines

    def write(self, **line: Any) -> None:
        data = (records.dumps(line) + "\n").encode("utf-8")
        try:
            while data:
                data = data[self.file.write(data) :]
        except OSError as error:
            raise files.refusal(self.path, error, len(data)) from error
        if self.board is not None:
            self.board.write(line)

    def sync(self) -> None:
        """Bring all lines to the disk: done before a state that stands for them is written."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise files.refusal(self.path, error) from error

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


class NoMetrics(Metrics):
    """What a process writes that is not the first: nothing."""

    def __init__(self) -> None:
        """Without a file."""

    def write(self, **line: Any) -> None:
        """Leave it to the first process."""

    def sync(self) -> None:
        """Leave it to the first process."""

    def close(self) -> None:
        """There is nothing to close."""


class Board:
    """Event files for TensorBoard, one scalar for every number of a line: loss/train, learning_rate/train, ...

    A run that goes on writes a file of its own and says that what older ones hold of later steps is void.
    """

    def __init__(self, folder: Path, step: int) -> None:
        check_board()
        from torch.utils.tensorboard import SummaryWriter

        try:
            self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)
        except OSError as error:
            raise files.refusal(folder, error) from error

    def write(self, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name in NAMES:
                continue
            for place, part in enumerate(value) if isinstance(value, list) else [(line["split"], value)]:
                self.writer.add_scalar(f"{name}/{place}", part, line["step"])

    def close(self) -> None:
        self.writer.close()


def check_board() -> None:
    """Refuse TensorBoard's log where its package is not installed."""
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise UserError("tensorboard is not installed; pip install 'geowidth[log]', or train without it") from error
