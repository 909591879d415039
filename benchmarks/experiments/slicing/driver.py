"""Runs the cells that are missing, in the order of the design; a stop at any moment loses the cell in work alone.

Several processes may run side by side, best on different texts: a line is appended whole and under a lock, and what
another process has written by then is not run again.
"""

import fcntl
import os

from benchmarks.experiments.slicing import design
from benchmarks.experiments.slicing.analysis import CELLS, GROUND
from benchmarks.experiments.slicing.cells import losses, run
from benchmarks.experiments.slicing.ground import Library, Sizes, round_to
from geowidth import records
from geowidth.errors import UserError
from geowidth.measure.opening import open_model
from geowidth.progress import Progress


def run_all(folder, work, prose, texts=design.TEXTS):
    """Append the missing rows of these texts to cells.jsonl and ground.jsonl in `folder`."""
    if prose is None and "prose" in texts:
        raise UserError("the prose is needed: python -m benchmarks.experiments.prose FOLDER, then --prose FOLDER")
    opened = open_model(design.MODEL, causal=True)
    library = Library(opened, {"code": "stdlib", "prose": prose}, Sizes(), work)
    run_cells(library, folder, design.cells(texts=texts))


def run_cells(library, folder, cells):
    """Run those of `cells` that have no row in `folder`, in their order."""
    settings = {"kind": "geowidth.slicing_study", "schema": 1, "settings": library.settings()}
    records.claim_folder(library.work / "settings.json", settings, "a study of slicing")
    with Progress(len(cells), "cells", unit="cell") as progress:
        for cell in cells:
            if cell.key not in done(folder / CELLS):
                ground = library.ground(cell.text, cell.draw)
                note_ground(library, ground, folder)
                append(folder / CELLS, run(ground, cell))
            progress.step()


def note_ground(library, ground, folder):
    """Append what the cells of this text and draw share, once."""
    if (ground.text, ground.draw) in {(row["text"], row["draw"]) for row in records.read_json_lines(folder / GROUND)}:
        return
    whole = losses(library.opened.model, ground.held_out, library.half)
    row = {
        "text": ground.text,
        "draw": ground.draw,
        "corpus": ground.held_out.settings["corpus"],
        "whole": [round(float(v), 5) for v in whole],
        "signals": ground.signals,
    }
    if ground.draw == 0:
        row["sensitivity"] = [[round_to(v, 5) for v in layer] for layer in ground.sensitivity]
    append(folder / GROUND, row)


def done(path):
    """Keys of the cells in a file, none where there is no file yet."""
    return {(row["text"], row["draw"], row["kept"], row["arm"]) for row in records.read_json_lines(path)}


def append(path, row):
    """Append one line whole; what a killed process left of a line is taken away first."""
    with open(path, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        written = file.read()
        file.truncate(written.rfind(b"\n") + 1)
        file.write(records.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
