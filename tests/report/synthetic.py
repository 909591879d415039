"""Run folders made up in the shape that `geowidth run` writes, for tests of the report. Deterministic."""

import math
from pathlib import Path

import numpy as np

from geowidth import records

ENVIRONMENT = {
    "geowidth": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.3.0", "scipy": "1.16.0",
    "machine": "Linux x86_64", "threads": 2,
}  # fmt: skip
CORPUS = {
    "source": "stdlib", "description": "standard library of Python 3.11", "digest": "9f2c4be1" * 8,
    "bytes": {"train": 10_812_345, "validation": 611_002, "test": 598_771},
}  # fmt: skip
EFFECTS = {"uniform": 0.0, "cosine": -0.021, "geometry": -0.006, "reversed": 0.034}


def work_record(layers=8, *, base=344, odd=False, seed=0):
    """A work.json: signals with a peak early in depth; `odd` puts an infinity and a NaN into two of them."""
    generator = np.random.default_rng(seed)
    depth = np.arange(layers) / max(layers - 1, 1)
    work, details = {}, [{"dimension": {"geometry": "raw", "k": 20, "merged": 37 * (i == 0)}} for i in range(layers)]
    scales = {"raw": (6.2, 4.1, 1.7), "spherical": (0.72, 0.31, 0.094), "hyperbolic": (4.3, 1.9, 0.61)}
    for geometry, sizes in scales.items():
        shapes = [1.3 - depth, 0.4 + np.exp(-((depth - 0.25) ** 2) / 0.05), 0.35 + (1 - depth) ** 2]
        noisy = [
            s * size * (1 + 0.12 * generator.standard_normal(layers)) for s, size in zip(shapes, sizes, strict=True)
        ]
        work[geometry] = {
            name: values.tolist() for name, values in zip(("shift", "gw", "topology"), noisy, strict=True)
        }
        value = np.square(work[geometry]["gw"])
        for layer, e in zip(details, value, strict=True):
            layer[geometry] = {"gw": {"value": e, "identity": e, "gap": e * 3e-7, "lower": e * 0.4}}
    if odd and layers > 4:
        work["hyperbolic"]["topology"][3] = math.inf
        work["raw"]["gw"][2] = math.nan
    dimension = 9 + 6 * np.sin(3 * depth) + 0.3 * generator.standard_normal(layers)
    return {
        "kind": "geowidth.work", "schema": 1, "work": work,
        "dimension": {name: (dimension * f).tolist() for name, f in
                      (("twonn_mle", 1.0), ("twonn_fit", 1.05), ("mle", 0.9), ("mle_mean", 0.94))},
        "widths": [base] * layers, "model_dimension": 128, "projections": 3,
        "details": details, "environment": ENVIRONMENT,
        "settings": {"neighbours": 20, "seed": 0, "radius": math.tanh(1), "clouds": {"tokens": 512}},
    }  # fmt: skip


def widths_of(arm, layers, base=344):
    """Widths with a fixed sum, in the shape the arm's name promises."""
    taper = {"uniform": 0.0, "cosine": 1.0, "geometry": 0.7, "reversed": -0.7}.get(arm, 0.3)
    shape = np.cos(np.pi * np.arange(layers) / max(layers - 1, 1)) * (1 + 0.3 * (arm in ("geometry", "reversed")))
    widths = np.round(base * (1 + 0.5 * taper * (shape - shape.mean()))).astype(int)
    widths[-1] += base * layers - widths.sum()
    return widths.tolist()


def schedule_record(arm, layers, base=344):
    """A schedule.json."""
    widths = widths_of(arm, layers, base)
    settings = {"floor": [1.0] * layers, "cap": [None] * layers, "seed": 0}
    if arm == "geometry":
        bounds = {"floor": [float(min(widths))] * layers, "cap": [max(widths) + 0.5] * layers}
        settings.update(geometry="hyperbolic", statistic="topology", **bounds)
    budget = {"unit": "parameters", "value": 384 * base * layers, "spent": 384 * base * layers}
    return {
        "kind": "geowidth.schedule", "schema": 1, "name": arm, "widths": widths, "base_width": base,
        "budget": budget, "quantum": 1, "layers": layers, "settings": settings, "details": {},
        "environment": ENVIRONMENT,
    }  # fmt: skip


def losses(arms, seeds, scale=1.0):
    """Final losses {arm: {seed: loss}}: seeds differ more than arms do."""
    generator = np.random.default_rng(7)
    common = 0.05 * generator.standard_normal(seeds)
    own = {arm: 0.008 * scale * generator.standard_normal(seeds) for arm in arms}
    return {
        arm: {str(s): float(2.214 + common[s] + EFFECTS.get(arm, 0.01) + own[arm][s]) for s in range(seeds)}
        for arm in arms
    }


def difference(own, base):
    """Paired statistics as the comparison writes them (t quantiles of the few sizes used here)."""
    gaps = np.array([own[s] - base[s] for s in own])
    count = len(gaps)
    signs = np.array(np.meshgrid(*[[-1, 1]] * count)).reshape(count, -1)
    p = float(np.mean(np.abs(gaps @ signs) >= abs(gaps.sum()) * (1 - 1e-12)))
    result = {
        "mean": float(gaps.mean()),
        "standard_error": None,
        "interval": None,
        "confidence": 0.95,
        "sign_flip_p": p,
    }
    if count > 1:
        error = float(gaps.std(ddof=1) / math.sqrt(count))
        reach = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}[count] * error
        result.update(standard_error=error, interval=[result["mean"] - reach, result["mean"] + reach])
    needed = 4 if count > 1 else None
    return {**result, "seeds": count, "seeds_for_power": {"effect": 0.02, "power": 0.8, "seeds": needed}}


def comparison_record(final, layers, sentence=None):
    """A comparison.json for final losses {arm: {seed: loss}}."""
    arms = []
    for arm, own in final.items():
        row = {
            "arm": arm,
            "widths": widths_of(arm, layers),
            "parameters": 1_612_416,
            "tokens": 307_200,
            "flops": 2.97e12,
        }
        row |= {"seconds": 48.2 + len(arm) / 10, "losses": own, "mean_loss": float(np.mean(list(own.values())))}
        arms.append(row | {"difference": None if arm == "uniform" else difference(own, final["uniform"])})
    sentence = sentence or (
        "No difference from uniform is seen for the cosine or the geometry widths at this size; the reversed control "
        "is worse in every seed."
    )
    return {
        "kind": "geowidth.comparison", "schema": 1, "baseline": "uniform", "arms": arms, "sentence": sentence,
        "settings": {"confidence": 0.95}, "environment": ENVIRONMENT,
    }  # fmt: skip


def write_training(folder, final, layers, arm, seed, *, finished=True):
    """A train folder: metrics of 150 steps, and unless half-finished a result."""
    steps = range(0, 151 if finished else 80, 10)
    generator = np.random.default_rng(seed + 100)
    wobble = np.cumsum(0.004 * generator.standard_normal(16))
    lines = []
    for index, step in enumerate(steps):
        far = math.exp(-step / 38)
        loss = final + (5.55 - final) * far + float(wobble[index] - wobble[-1]) * (0.3 + far)
        loss += float(0.01 * np.sin(index * (2 + len(arm)) + seed)) * (step < 150)
        lines.append(
            {"step": step, "split": "train", "loss": loss - 0.05, "tokens": step * 2048, "seconds": step * 0.3}
        )
        lines.append({"step": step, "split": "validation", "loss": loss, "tokens": step * 2048, "seconds": step * 0.31})
    text = "".join(records.dumps(line) + "\n" for line in lines)
    records.write_text(folder / "metrics.jsonl", text if finished else text + '{"step": 80, "spl')
    config = {"kind": "geowidth.training", "schema": 1, "preset": "nano", "seed": seed,
              "widths": widths_of(arm, layers),
              "model": {"vocabulary": 256, "layers": layers, "dimension": 128, "heads": 4, "context": 256},
              "corpus": CORPUS, "training": {"steps": 150}, "environment": ENVIRONMENT}  # fmt: skip
    records.write_json(folder / "config.json", config)
    if finished:
        result = {"kind": "geowidth.training_result", "schema": 1, "loss": final, "best_loss": final,
                  "bits_per_byte": final / math.log(2), "parameters": 1_612_416, "tokens": 307_200, "flops": 2.97e12,
                  "seconds": 48.2 + seed, "seed": seed, "widths": widths_of(arm, layers),
                  "corpus": CORPUS}  # fmt: skip
        records.write_json(folder / "result.json", result)


def make_run(folder, *, layers=8, arms=("uniform", "cosine", "geometry", "reversed"), seeds=3, odd=False, half=False):
    """A run folder. `half`: the first two arms are trained, the second one's last seed only partly; no more yet."""
    folder = Path(folder)
    settings = {
        "preset": "nano", "corpus": "stdlib", "arms": list(arms), "seeds": list(range(seeds)), "steps": 150,
        "tokens": 512, "geometry": "hyperbolic", "statistic": "topology", "reference": "arms/uniform/seed-0",
    }  # fmt: skip
    records.write_json(folder / "settings.json", {"kind": "geowidth.run", "schema": 1, "settings": settings})
    final = losses(arms, seeds)
    for arm in arms[: 2 if half else None]:
        for seed in range(seeds):
            stopped = half and arm == arms[1] and seed == seeds - 1
            place = folder / "arms" / arm / f"seed-{seed}"
            write_training(place, final[arm][str(seed)], layers, arm, seed, finished=not stopped)
    for arm in arms if not half else ("uniform", "cosine"):
        records.write_json(folder / "schedules" / f"{arm}.json", schedule_record(arm, layers))
    if not half:
        records.write_json(folder / "work.json", work_record(layers, odd=odd))
        records.write_json(folder / "comparison.json", comparison_record(final, layers))
    return folder
