"""One finished training of a cascade study: its ledger, and the importance of its blocks on held-out text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from geowidth import files, forms, records
from geowidth.artifacts.ledger import Ledger
from geowidth.cascade.blocks import residual_blocks
from geowidth.cascade.held_out import draw_held_out
from geowidth.cascade.importance import block_importance
from geowidth.cascade.pruning import JUDGED
from geowidth.cascade.study_design import CascadeStudy, cell_folder
from geowidth.cascade.study_record import cell_of
from geowidth.cascade.training import LEDGER_FILE, write_ledger
from geowidth.errors import UserError
from geowidth.forms import FINITE, OBJECT, TEXT
from geowidth.measure.opening import open_model
from geowidth.ops.threads import torch_threads
from geowidth.progress import Progress
from geowidth.text.corpus import load_corpus
from geowidth.train import checkpoint

IMPORTANCE_FILE, KIND, SCHEMA = "importance.json", "geowidth.block_importance", 1
FORM = {
    "blocks": [TEXT], "loss": {"mean": FINITE, "standard_error": FINITE}, "importance": [FINITE],
    "standard_errors": [FINITE], "text": OBJECT,
}  # fmt: skip
AGAIN = "delete it and run geowidth cascade study again"


def judge_cells(study: CascadeStudy, folder: Path) -> None:
    """Write the ledger and the importance of every finished training that has none yet."""
    text = load_corpus(study.corpus)
    places = [place for _, _, place in cells(study, folder)]
    left = [place for place in places if _judged(place) is None]
    passes = study.preset.model.layers + 1
    with Progress(passes * len(places), "importance", unit="block") as bar:
        bar.resume_at(passes * (len(places) - len(left)))
        for place in left:
            write_ledger(place)
            records.write_json(place / IMPORTANCE_FILE, _judge(study, place, text, bar.step))


def cells(study: CascadeStudy, folder: Path) -> Iterator[tuple[str, int, Path]]:
    """(arm, seed, training folder) of every cell, seed by seed."""
    for seed in study.seeds:
        for arm in study.arms:
            yield arm.name, seed, cell_folder(folder, arm.name, seed)


def read_cell(place: Path) -> dict[str, Any] | None:
    """What the record holds of one training; None while it is not finished and judged."""
    result, judged = checkpoint.read_result(place), _judged(place)
    if result is None or judged is None:
        return None
    shares = Ledger.read(place / LEDGER_FILE).shares.tolist()
    if not len(shares) == len(judged["importance"]) == len(judged["standard_errors"]):
        raise UserError(f"{place / IMPORTANCE_FILE} and {LEDGER_FILE} are of other numbers of blocks; {AGAIN}")
    facts = {name: result[name] for name in ("parameters", "flops", "corpus", "environment") if name in result}
    return cell_of(result["loss"], result["seconds"], judged, shares) | {"facts": facts, "text": judged["text"]}


def _judge(study, place, corpus, watch):
    """The content of importance.json: by one thread, so that the bits are those of every machine of a kind."""
    with torch_threads(1):
        opened = open_model(place, causal=True)
        text = draw_held_out(
            opened, corpus, JUDGED, windows=study.windows, context=study.preset.model.context, seed=study.seed
        )
        found = block_importance(residual_blocks(opened.model), text, watch=watch)
    return {"kind": KIND, "schema": SCHEMA, **found.to_json(), "environment": records.environment()}


def _judged(place):
    """importance.json of a training folder, or None."""
    path = place / IMPORTANCE_FILE
    if not files.exists(path):
        return None
    record = records.read_json(path, KIND, SCHEMA)
    forms.check(path, record, FORM, AGAIN)
    return record
