"""Do late blocks regain importance? Arms trained with paired seeds and ledgers, their blocks judged, one record of it.

    study = resolve_study("nano", seeds=[0, 1, 2])
    record = run_study(study, "runs/cascade")

The folder holds settings.json, arms/ARM/seed-S (a training with ledger.json and importance.json), rates/RATE (the
sweep of SGD's learning rate) and study.json. What is finished is kept: the same call goes on where it stopped.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geowidth import files, records
from geowidth.cascade import study_record
from geowidth.cascade.study_cells import judge_cells
from geowidth.cascade.study_design import CascadeStudy, read_settings
from geowidth.cascade.study_files import RECORD_FILE, RECORD_KIND, SETTINGS_FILE
from geowidth.cascade.study_gather import gather
from geowidth.cascade.study_rates import try_rates
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.progress import duration, tell

if TYPE_CHECKING:
    from concurrent.futures import Executor


def run_study(
    study: CascadeStudy,
    folder: PathLike,
    *,
    processes: int | None = None,
    on: str | Executor | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Do everything `study` asks for that is not done yet in `folder`; returns the content of its study.json.

    processes, on: how many trainings run side by side, and where; see geowidth.train.train_many. device: of each
    training (None: the cpu); blocks are judged here, on the cpu.
    """
    from geowidth.train.executors import opened
    from geowidth.train.world import training_device

    study.check(processes)
    with opened(on, Path(folder)) as executor:
        if executor is None:
            training_device(device or "cpu")  # that of workers elsewhere is theirs to check
        return _run(study, Path(folder), {"processes": processes, "on": executor}, device)


def _run(study, folder, where, device):
    from geowidth.train.parallel import train_many

    claimed = study.to_json() | {"environment": records.environment()}
    records.claim_folder(folder / SETTINGS_FILE, claimed, "a study")
    records.check_writable(folder / RECORD_FILE)
    started = time.monotonic()
    if study.needs_rate and len(study.rates) > 1:
        tell(f"[1/3] choose SGD's learning rate among {' '.join(f'{rate:g}' for rate in study.rates)}, then train")
    rate = try_rates(study, folder, **where, device=device)
    tell(f"[1/3] train {', '.join(arm.text for arm in study.arms)}: {len(study.arms) * len(study.seeds)} models")
    # Seed by seed, so that an interrupted study has whole pairs.
    jobs = [study.job(folder, arm, seed, rate, device or "cpu") for seed in study.seeds for arm in study.arms]
    train_many(jobs, **where, label="train")
    tell(f"[2/3] judge the blocks of every model on {study.windows} windows of held-out text")
    judge_cells(study, folder)
    tell("[3/3] compare seed by seed")
    record = gather(study, folder)
    records.write_json(folder / RECORD_FILE, record)
    tell(f"done in {duration(time.monotonic() - started)}")
    return record


def read_study(folder: PathLike) -> dict[str, Any]:
    """The record of a study folder: gathered from what is finished there, or its study.json where that is all there is.

    Raises UserError for a folder that holds no study, and for damaged files.
    """
    folder = Path(folder)
    if files.exists(folder / SETTINGS_FILE):
        return gather(read_settings(folder), folder)
    path = folder / RECORD_FILE
    if not files.exists(path):
        raise UserError(f"{folder} holds no {RECORD_FILE}; name a folder that geowidth cascade study wrote")
    record = records.read_json(path, RECORD_KIND, study_record.SCHEMA)
    study_record.check_record(path, record)
    return record
