"""Calibration: train small models with one layer's FFN width changed at a time, and fit the surrogate to their losses.

The allocation assumes that the loss depends on layer l's width as c_l w_l^(-a_l) with c_l from measured work. Here both
are fitted to trained models: paired seeds, the unchanged model beside every change. The experiment of the paper's open
questions (arXiv 2608.02064, limitations), at a size that a laptop can train.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from geowidth import records
from geowidth.artifacts.calibration import Calibration, bounded
from geowidth.diagnose.association import FEWEST_LAYERS, partial_spearman
from geowidth.diagnose.calibration_design import CalibrationDesign
from geowidth.diagnose.curves import CurveFit, fit_curves
from geowidth.diagnose.sweep import Sweep, basis
from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.train.evidence import LOSS_UNIT, loss_unit

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from geowidth.artifacts.work_profile import WorkProfile
    from geowidth.inputs import ArrayLike
    from geowidth.models.presets import Preset


def calibrate(
    out: PathLike,
    preset: str | Preset = "nano",
    *,
    seeds: Iterable[int] | None = None,
    factors: Iterable[float] | None = None,
    steps: int | None = None,
    corpus: PathLike = "stdlib",
    tokens: int | None = None,
    work: WorkProfile | PathLike | None = None,
    processes: int | None = None,
    on: str | Executor | None = None,
    device: str | None = None,
) -> Calibration:
    """Train, measure and fit in folder `out`; returns the Calibration, also written to out/calibration.json.

    preset: name or Preset. seeds, factors, steps: see CalibrationDesign. work: a WorkProfile or the path of one
    (default: the base model of the first seed is measured on `tokens` held-out tokens). processes, on: how many
    trainings run side by side, and where; see geowidth.train.train_many. device: of each training (None: the cpu).
    Finished trainings are kept: an interrupted call goes on. Raises UserError before any work for what cannot run.
    """
    from geowidth.allocate.problem import load_work
    from geowidth.measure import check_enough_text
    from geowidth.models.presets import preset_named
    from geowidth.text.corpus import load_corpus
    from geowidth.train import train_many
    from geowidth.train.executors import opened
    from geowidth.train.processes import process_count
    from geowidth.train.world import training_device

    chosen = preset_named(preset)
    given: dict[str, Any] = {"seeds": seeds, "factors": factors, "steps": steps}
    given = {name: value for name, value in given.items() if value is not None}
    given["tokens"] = chosen.run.measured_tokens if tokens is None else tokens
    design = CalibrationDesign(chosen, corpus=str(corpus), **given)
    design = replace(design, seeds=tuple(design.seeds), factors=tuple(map(float, design.factors)))
    folder, profile = Path(out), load_work(work)
    if profile is None:
        chosen.model.refuse_repeats("a calibration, which measures FFNs,")
    if profile is not None and len(profile.widths) != chosen.model.layers:
        raise UserError(
            f"the work profile has {len(profile.widths)} layers, preset {chosen.name} {chosen.model.layers}"
        )
    jobs = [replace(job, device=device or "cpu") for job in design.jobs(folder)]
    jobs[0].prepare()  # refuses a bad corpus before anything is written
    process_count(processes)
    if profile is None:
        check_enough_text(load_corpus(design.corpus), chosen.model.context, design.tokens)
    with opened(on, folder) as executor:
        if executor is None:
            training_device(device or "cpu")  # that of workers elsewhere is theirs to check
        design.claim(folder)
        results = train_many(jobs, processes, on=executor, label="calibrate")
    if profile is None:
        profile = _measure(design, folder)
    found = summarise(design, [result["loss"] for result in results], profile, loss_unit(results[0]["corpus"]))
    records.write_json(folder / "calibration.json", found.to_json())
    records.write_text(folder / "curves.csv", curves_csv(found))
    return found


def _measure(design, folder):
    """The work profile of the base model of the first seed."""
    from geowidth.artifacts.work_profile import WorkProfile
    from geowidth.measure import measure

    path = folder / "work.json"
    if path.exists():
        return WorkProfile.read(path)
    model = folder / "runs" / "base" / f"seed-{design.seeds[0]}"
    return measure(model, corpus=design.corpus, tokens=design.tokens, out=path)


def summarise(
    design: CalibrationDesign, losses: Sequence[float], profile: WorkProfile, unit: str = LOSS_UNIT
) -> Calibration:
    """The Calibration of finished trainings. losses: one a job of `design.jobs`, in their order, in `unit`."""
    layers, count, seeds = design.preset.model.layers, len(design.factors), len(design.seeds)
    table = np.asarray(losses, dtype=np.float64).reshape(seeds, 1 + layers * count)
    sweep = Sweep(table[:, 0], table[:, 1:].T.reshape(layers, count, seeds), design.ratios)
    fit = fit_curves(sweep)
    rows = [_layer_row(one, width) for one, width in zip(fit.layers, design.preset.model.widths, strict=True)]
    shared = {
        "exponent": fit.shared_exponent,
        "exponent_interval": fit.shared_interval,
        "difficulty": fit.shared_difficulty,
        "difficulty_interval": fit.shared_difficulty_interval,
    }
    targets = {
        "difficulty": fit.shared_difficulty,
        "slope": [row["slope"] for row in rows],
        "coefficient": [row["coefficient"] for row in rows],
    }
    signals = signal_table(profile, targets)
    plain = records.to_jsonable
    return Calibration(
        design.preset.name,
        design.preset.model.widths,
        plain(rows),
        plain(shared),
        fit.noise,
        fit.forms,
        fit.lack_of_fit,
        plain({"share": fit.explained, "interval": fit.explained_interval}),
        signals,
        _curve_rows(design, sweep),
        sentence(fit, signals),
        plain(design.to_json() | {"unit": unit}),
    )


def _layer_row(fit, width):
    coefficient, interval = fit.coefficient(width)
    slope, slope_interval = fit.slope
    return {
        "slope": slope,
        "slope_interval": slope_interval,
        "determined": fit.determined,
        "difficulty": fit.difficulty,
        "difficulty_interval": fit.difficulty_interval,
        "exponent": fit.exponent,
        "exponent_interval": fit.exponent_interval,
        "coefficient": coefficient,
        "coefficient_interval": interval,
        "explained": fit.explained,
        "explained_interval": fit.explained_interval,
    }


def _curve_rows(design, sweep):
    rows = []
    for seed, base in zip(design.seeds, sweep.base.tolist(), strict=True):
        rows.append({"layer": None, "width": None, "seed": seed, "loss": base, "difference": 0.0})
    for layer, widths in enumerate(design.varied.tolist()):
        for place, width in enumerate(widths):
            for k, seed in enumerate(design.seeds):
                loss = float(sweep.losses[layer, place, k])
                rows.append(
                    {
                        "layer": layer,
                        "width": width,
                        "seed": seed,
                        "loss": loss,
                        "difference": loss - float(sweep.base[k]),
                    }
                )
    return rows


def signal_table(profile: WorkProfile, targets: dict[str, Any]) -> dict[str, Any]:
    """{geometry: {statistic: {target: {"rho", "p", "raw_rho"}}}}: Spearman with depth controlled, and without."""
    depth = np.arange(len(profile.widths))
    table: dict[str, dict[str, dict[str, dict[str, float | None]]]] = {}
    for geometry, statistics in profile.work.items():
        table[geometry] = {}
        for statistic, values in statistics.items():
            table[geometry][statistic] = {}
            for name, target in targets.items():
                rho, p = partial_spearman(values, target, depth)
                plain, _ = partial_spearman(values, target, np.zeros(len(depth)))
                table[geometry][statistic][name] = {"rho": rho, "p": p, "raw_rho": plain}
    return table


def sentence(fit: CurveFit, signals: dict[str, Any]) -> str:
    """What may and may not be concluded, in plain words."""
    low, high = fit.shared_interval
    open_end = "" if bounded(low, high) else "; these data do not bound it, the search ends there"
    words = [
        f"With one exponent for all layers a = {fit.shared_exponent:.2f} (95 % interval {low:.2f} to {high:.2f}"
        f"{open_end}).",
        explained_words(fit),
    ]
    if fit.lack_of_fit is None:
        words.append("Whether another form fits better cannot be tested with one seed, two widths or no noise.")
    elif fit.lack_of_fit["p"] < 0.05:
        words.append(f"Another form would fit better (lack of fit p = {fit.lack_of_fit['p']:.2g}).")
    else:
        words.append(f"There is no lack of fit to be seen (p = {fit.lack_of_fit['p']:.2g}).")
    loose = sum(not layer.determined for layer in fit.layers)
    if loose:
        words.append(f"The exponents of {loose} of {len(fit.layers)} layers are not determined by these data.")
    rows = [(g, s, row["difficulty"]) for g, table in signals.items() for s, row in table.items()]
    rows = [row for row in rows if row[2]["rho"] is not None]
    if not rows:
        few = f": {len(fit.layers)} layers are not enough" if len(fit.layers) < FEWEST_LAYERS else ""
        return " ".join([*words, f"No signal could be compared with the fitted difficulties{few}."])
    geometry, statistic, best = max(rows, key=lambda row: row[2]["rho"])
    held = best["p"] * len(rows) < 0.05 and best["rho"] > 0
    verdict = "holds" if held else "does not hold"
    words.append(
        f"Of {len(rows)} signals {statistic} x {geometry} follows the fitted difficulties most closely with depth "
        f"controlled (Spearman {best['rho']:.2f}, p = {best['p']:.2g}); this {verdict} at 5 % once all are counted."
    )
    return " ".join(words)


def explained_words(fit: CurveFit) -> str:
    """What the curves explain of what width does, or that nothing can be said of it."""
    if fit.explained is None:
        return "The width of a layer does nothing to the loss, so there is nothing for curves w^(-a) to explain."
    if fit.explained_interval is None:
        return (
            "How much of what the width of a layer does to the loss curves w^(-a) explain cannot be said with one seed."
        )
    low, high = (100 * bound for bound in fit.explained_interval)
    if low <= 0:
        return (
            "What the width of a layer does to the loss does not stand out of the noise, so nothing can be said of how "
            f"much of it curves w^(-a) explain (95 % interval 0 to {high:.0f} %)."
        )
    return (
        f"Curves w^(-a) explain {100 * fit.explained:.0f} % of what the width of a layer does to the loss, beside free "
        f"means (95 % interval {low:.0f} to {high:.0f} %)."
    )


def curves_csv(calibration: Calibration) -> str:
    """The curves as CSV text: one trained model a line."""
    lines = ["layer,width,seed,loss,difference"]
    for row in calibration.curves:
        lines.append(
            ",".join("" if row[k] is None else str(row[k]) for k in ("layer", "width", "seed", "loss", "difference"))
        )
    return "\n".join(lines) + "\n"


def fitted_curve(calibration: Calibration, layer: int, widths: ArrayLike) -> np.ndarray:
    """The fitted loss difference of one layer at `widths`, float64."""
    row = calibration.layers[layer]
    return row["difficulty"] * basis(np.asarray(widths) / calibration.widths[layer], row["exponent"])
