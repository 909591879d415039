"""The learning rate of SGD in a cascade study: a few are tried with one training each, and the best is taken.

The plain SGD training of a seed that no arm has, one for each rate; the one with the lowest final validation loss
decides for all SGD arms; a rate at which the loss diverges is out. So the rate is chosen without a look at what is
judged: other seeds, another split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geowidth import files, records
from geowidth.cascade.study_design import CascadeStudy, rate_folder
from geowidth.errors import UserError
from geowidth.train import checkpoint

DIVERGED_FILE = "diverged.json"


def losses_of_rates(study: CascadeStudy, folder: Path) -> list[float | None]:
    """The final validation loss of every rate; infinite where its training diverged, None where it is not finished."""
    return [_loss(rate_folder(folder, rate)) for rate in study.rates]


def _loss(place):
    if _diverged(place):
        return math.inf
    result = checkpoint.read_result(place)
    return None if result is None else float(result["loss"])


def _diverged(place):
    return files.exists(place / DIVERGED_FILE)


def best_rate(rates: Sequence[float], losses: Sequence[float | None]) -> float | None:
    """The rate of the lowest loss, the lower of equal ones; the only one without a look; None while one is open.

    Raises UserError where all diverged.
    """
    if len(rates) == 1:
        return rates[0]
    known = [loss for loss in losses if loss is not None]
    if len(known) < len(rates):
        return None
    if min(known) == math.inf:
        tried = " ".join(f"{rate:g}" for rate in rates)
        raise UserError(f"SGD diverged at every rate of {tried}; give lower --sgd-rates, and another folder")
    return rates[losses.index(min(known))]


def try_rates(study: CascadeStudy, folder: Path, **where: Any) -> float | None:
    """Train what is needed to choose, and return the rate; None where no arm needs one."""
    if not study.needs_rate:
        return None
    if len(study.rates) > 1:
        device = where.pop("device") or "cpu"
        jobs = [study.rate_job(folder, rate, device) for rate in study.rates]
        jobs = [job for job in jobs if not _diverged(Path(job.out))]
        if not _finishes(jobs, where):
            for job in jobs:  # one by one, to see which
                if not _finishes([job], where):
                    records.write_json(Path(job.out) / DIVERGED_FILE, {"kind": "geowidth.diverged_rate", "schema": 1})
    return best_rate(study.rates, losses_of_rates(study, folder))


def _finishes(jobs, where):
    """Train; False where the loss of one was no finite number any more."""
    from geowidth.train.parallel import train_many
    from geowidth.train.state import DIVERGED

    try:
        train_many(jobs, **where, label="rates")
    except UserError as error:
        if DIVERGED not in str(error):
            raise
        return False
    return True


def record_of_rates(study: CascadeStudy, folder: Path) -> dict[str, Any] | None:
    """How the rate was chosen, for the record; None where no arm needs one."""
    if not study.needs_rate:
        return None
    losses = losses_of_rates(study, folder) if len(study.rates) > 1 else [None]
    chosen = best_rate(study.rates, losses)
    finite = [None if loss == math.inf else loss for loss in losses]  # null: diverged, where a rate is chosen
    found = {"seed": study.rate_seed, "rates": list(study.rates), "losses": finite, "chosen": chosen}
    return found | {"words": rate_words(study.rates, losses, chosen, study.rate_seed)}


def rate_words(rates: Sequence[float], losses: Sequence[float | None], chosen: float | None, seed: int) -> str:
    """How the rate was chosen, in words."""
    if chosen is None:
        return "The learning rate of SGD is not chosen yet: not all rates have been tried."
    if len(rates) == 1:
        return f"SGD's learning rate {chosen:g} was given, not tried against others."
    pairs = zip(rates, losses, strict=True)
    tried = ", ".join(f"{rate:g} ({'diverged' if loss == math.inf else f'{loss:.3f}'})" for rate, loss in pairs)
    text = (
        f"SGD's learning rate {chosen:g} is the best of those tried with one plain training each, of seed {seed}, "
        f"which no arm has (final validation loss): {tried}."
    )
    edge = chosen in (rates[0], rates[-1])
    return text + (" It is at the end of the list: a better one may lie beyond." if edge else "")
