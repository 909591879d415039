"""The record of a study folder: its finished cells gathered, compared and put into words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geowidth import records
from geowidth.cascade import study_words
from geowidth.cascade.expected_paths import predicted_of
from geowidth.cascade.study_cells import read_cell
from geowidth.cascade.study_design import CascadeStudy, cell_folder
from geowidth.cascade.study_files import RECORD_KIND
from geowidth.cascade.study_rates import record_of_rates
from geowidth.cascade.study_record import SCHEMA, correct, correlations, differences, late_blocks, summary
from geowidth.train.evidence import loss_unit


def gather(study: CascadeStudy, folder: Path) -> dict[str, Any]:
    """The content of study.json, from whatever is finished in `folder`; `missing` says what is not."""
    rates = record_of_rates(study, folder)
    chosen = study.rates[0] if rates is None or rates["chosen"] is None else rates["chosen"]
    found = {arm.name: _cells(study, folder, arm.name) for arm in study.arms}
    known = [cell for cells in found.values() for cell in cells.values()]
    arms = [_arm(study, arm, chosen, found) for arm in study.arms]
    correct(arms)
    for arm in arms:
        arm["verdict"] = study_words.verdict(arm)
    layers = study.preset.model.layers
    by_name = {arm["arm"]: arm for arm in arms}
    corpus = known[0]["facts"]["corpus"] if known else None
    record = {
        "kind": RECORD_KIND,
        "schema": SCHEMA,
        "settings": study.to_json()["settings"],
        "layers": layers,
        "late": {"half": late_blocks(layers, 1 / 2), "quarter": late_blocks(layers, 1 / 4)},
        "unit": loss_unit(corpus),
        "corpus": corpus,
        "text": known[0]["text"] if known else None,
        "rates": rates,
        "question": study_words.QUESTION,
        "headline": study_words.headline(arms),
        "definition": study_words.definition(layers),
        "plain": [study_words.plain_line(arm, layers) for arm in arms if arm["against"] is None],
        "sentences": [
            study_words.arm_line(arm, by_name[arm["against"]], layers) for arm in arms if arm["against"] is not None
        ],
        "notes": study_words.notes(arms, len(study.seeds), rates),
        "arms": arms,
        "missing": _missing(study, found),
        "environment": known[0]["facts"].get("environment", {}) if known else records.environment(),
    }
    for cell in known:
        del cell["facts"], cell["text"]
    return record


def _cells(study, folder, arm):
    cells = {seed: read_cell(cell_folder(folder, arm, seed)) for seed in study.seeds}
    return {seed: cell for seed, cell in cells.items() if cell is not None}


def _arm(study, arm, rate, found):
    """One arm of the record, without corrected p-values and words."""
    model, training = study.shape(arm, rate)
    cells, facts = found[arm.name], summary(found[arm.name])
    paths, words = predicted_of(model, training)
    fan_in = paths.tolist()
    first = next(iter(cells.values()), None)
    return {
        "arm": arm.name,
        "sentence": arm.sentence,
        "against": arm.against,
        "optimizer": arm.optimizer,
        "learning_rate": training.learning_rate,
        "changes": arm.changes,
        "fan_in": fan_in,
        "fan_in_words": words,
        "parameters": None if first is None else first["facts"]["parameters"],
        "flops": None if first is None else first["facts"]["flops"],
        "cells": {str(seed): cell for seed, cell in cells.items()},
        **facts,
        "correlations": correlations(facts["means"], fan_in),
        "differences": {} if arm.against is None else differences(cells, found[arm.against]),
    }


def _missing(study, found):
    notes = []
    for arm, cells in found.items():
        left = [str(seed) for seed in study.seeds if seed not in cells]
        if left:
            notes.append(f"{arm}: seed{'s' * (len(left) > 1)} {', '.join(left)} not trained and judged to the end.")
    return notes
