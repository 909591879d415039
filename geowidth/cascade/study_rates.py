"""The learning rate of SGD in a cascade study: a few are tried with one training each, and the best is taken.

The plain SGD training of a seed that no arm has, one for each rate; the one with the lowest final validation loss
decides for all SGD arms. So the rate is chosen without a look at what is judged: other seeds, another split.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geowidth.cascade.study_design import CascadeStudy, rate_folder
from geowidth.train import checkpoint


def losses_of_rates(study: CascadeStudy, folder: Path) -> list[float | None]:
    """The final validation loss of every rate; None where its training is not finished."""
    results = [checkpoint.read_result(rate_folder(folder, rate)) for rate in study.rates]
    return [None if result is None else float(result["loss"]) for result in results]


def best_rate(rates: Sequence[float], losses: Sequence[float | None]) -> float | None:
    """The rate of the lowest loss, the lower of equal ones; the only one without a look; None while one is open."""
    if len(rates) == 1:
        return rates[0]
    known = [loss for loss in losses if loss is not None]
    return None if len(known) < len(rates) else rates[losses.index(min(known))]


def try_rates(study: CascadeStudy, folder: Path, **where: Any) -> float | None:
    """Train what is needed to choose, and return the rate; None where no arm needs one."""
    if not study.needs_rate:
        return None
    if len(study.rates) > 1:
        from geowidth.train.parallel import train_many

        device = where.pop("device") or "cpu"
        train_many([study.rate_job(folder, rate, device) for rate in study.rates], **where, label="rates")
    return best_rate(study.rates, losses_of_rates(study, folder))


def record_of_rates(study: CascadeStudy, folder: Path) -> dict[str, Any] | None:
    """How the rate was chosen, for the record; None where no arm needs one."""
    if not study.needs_rate:
        return None
    losses = losses_of_rates(study, folder) if len(study.rates) > 1 else [None]
    chosen = best_rate(study.rates, losses)
    found = {"seed": study.rate_seed, "rates": list(study.rates), "losses": losses, "chosen": chosen}
    return found | {"words": rate_words(study.rates, losses, chosen, study.rate_seed)}


def rate_words(rates: Sequence[float], losses: Sequence[float | None], chosen: float | None, seed: int) -> str:
    """How the rate was chosen, in words."""
    if chosen is None:
        return "The learning rate of SGD is not chosen yet: not all rates have been tried."
    if len(rates) == 1:
        return f"SGD's learning rate {chosen:g} was given, not tried against others."
    tried = ", ".join(f"{rate:g} ({loss:.3f})" for rate, loss in zip(rates, losses, strict=True))
    text = (
        f"SGD's learning rate {chosen:g} is the best of those tried with one plain training each, of seed {seed}, "
        f"which no arm has (final validation loss): {tried}."
    )
    edge = chosen in (rates[0], rates[-1])
    return text + (" It is at the end of the list: a better one may lie beyond." if edge else "")
