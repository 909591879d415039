"""The tables of a cascade study, on its page and as CSV files beside it."""

from collections.abc import Mapping
from typing import Any

from geowidth.cascade.study_record import mean_over
from geowidth.report.numbers import DASH, is_finite, plain, signed
from geowidth.report.page import grid_table, tag, words
from geowidth.report.spreadsheets import csv_text

FILES = {
    "study.json": "every number, correlation, difference and sentence of this page",
    "arms.csv": "one line an arm and measure: mean, paired difference, interval, p-values",
    "blocks.csv": "arm, seed, block, importance, its standard error over windows, gradient share, predicted fan-in",
}
MEASURES = {
    "late_half": "last half", "late_quarter": "last quarter", "late_rest": "last half without the first block",
    "late_sum": "late importance, nats", "loss": "validation loss",
}  # fmt: skip
SHARES = ("late_half", "late_quarter", "late_rest")
PAIRS = {
    "shares_importance": "gradient share, importance", "fan_in_importance": "fan-in, importance",
    "fan_in_shares": "fan-in, gradient share",
}  # fmt: skip


def _scaled(name, value, decimals=None, sign=False):
    """A number of a measure: shares in points of 100."""
    if not is_finite(value):
        return DASH
    share = name in SHARES
    places = (1 if share else 4) if decimals is None else decimals
    return (signed if sign else plain)(100 * value if share else value, places)


def _p(value):
    return f"{value:.2g}" if is_finite(value) else DASH


def _interval(name, found):
    ends = found.get("interval")
    return DASH if ends is None else " to ".join(_scaled(name, end, sign=True) for end in ends)


def _seeds_and_mean(arm, name):
    """(number of seeds, mean of a measure) of an arm: over the seeds that its difference is over, where it has one."""
    found = arm["differences"].get(name)
    if found is None:
        return len(arm["cells"]), arm["means"].get(name)
    return found["seeds"], mean_over(arm["cells"], name, found["by_seed"])


def late_table(record: Mapping[str, Any]) -> str:
    """The headline measure of every arm with all that is known of its difference."""
    head = ["arm", "held against", "seeds", "share, %", "difference \u00b1 se, points", "95 % interval", "t test p",
            "corrected p", "sign-flip p"]  # fmt: skip
    body = []
    for arm in record["arms"]:
        found = arm["differences"].get("late_half", {})
        error = f" \u00b1 {_scaled('late_half', e)}" if (e := found.get("standard_error")) is not None else ""
        difference = _scaled("late_half", found.get("mean"), sign=True) + error if found else DASH
        ps = [_p(found.get(name)) for name in ("t_p", "holm_p", "sign_flip_p")]
        seeds, mean = _seeds_and_mean(arm, "late_half")
        body.append([arm["arm"], arm["against"] or DASH, seeds, _scaled("late_half", mean), difference,
                     _interval("late_half", found), *ps])  # fmt: skip
    return grid_table(head, body, "dense", "Share of the late blocks in all importance, differences paired by seed")


def measures_table(record: Mapping[str, Any]) -> str:
    """Every arm by every measure, with the difference and its corrected p."""
    body = []
    for arm in record["arms"]:
        cells = []
        for name in MEASURES:
            text, found = _scaled(name, _seeds_and_mean(arm, name)[1]), arm["differences"].get(name)
            gap = f" ({_scaled(name, found['mean'], sign=True)}, p {_p(found['holm_p'])})" if found else ""
            cells.append(text + gap)
        body.append([arm["arm"], *cells])
    units = {name: f"{words}, %" if name in SHARES else words for name, words in MEASURES.items()}
    units["loss"] += f", {record['unit']}"
    table = grid_table(["arm", *units.values()], body, "dense",
                       "Other measures: mean (difference from the plain arm, corrected p)")  # fmt: skip
    return tag("details", words("summary", "Other measures, and the losses"), table)


def by_seed(record: Mapping[str, Any]) -> str:
    """The headline measure of every seed."""
    seeds = [str(seed) for seed in record["settings"]["seeds"]]
    body = [
        [arm["arm"], *(_scaled("late_half", arm["cells"].get(seed, {}).get("late_half")) for seed in seeds)]
        for arm in record["arms"]
    ]
    table = grid_table(["arm", *(f"seed {seed}" for seed in seeds)], body, "", "Share of the late blocks, %, by seed")
    return tag("details", words("summary", "By seed"), table)


def by_block(record: Mapping[str, Any], name: str, caption: str, decimals: int) -> str:
    """Mean and spread of importance or shares, blocks as columns."""
    body = []
    for arm in record["arms"]:
        means, spreads = arm["means"].get(name), arm["spreads"].get(name)
        texts = [DASH] * record["layers"] if means is None else [plain(value, decimals) for value in means]
        if spreads is not None:
            texts = [f"{text} \u00b1 {plain(s, decimals)}" for text, s in zip(texts, spreads, strict=True)]
        body.append([arm["arm"], *texts])
    head = ["arm", *(f"block {block}" for block in range(record["layers"]))]
    return tag("details", words("summary", "All numbers by block"), grid_table(head, body, "dense", caption))


def fan_in_table(record: Mapping[str, Any]) -> str:
    """The predicted fan-in of every arm, and what it counts."""
    body = []
    for arm in record["arms"]:
        body.append([arm["arm"], *(f"{value:.4g}" for value in arm["fan_in"]), arm["fan_in_words"]])
    head = ["arm", *(f"block {block}" for block in range(record["layers"])), "counts"]
    table = grid_table(head, body, "dense wide-table", "Gradient paths that reach each block, by the formulas")
    return tag("details", words("summary", "Predicted fan-in"), table)


def _correlation(both, kind):
    if both is None or both[kind]["value"] is None:
        return DASH
    ends = both[kind]["interval"]
    text = plain(both[kind]["value"], 2)
    return text if ends is None else f"{text} ({plain(ends[0], 2)} to {plain(ends[1], 2)})"


def correlation_table(record: Mapping[str, Any]) -> str:
    """Spearman's and Pearson's correlation of every pair, with intervals; and how Spearman's lies over seeds."""
    head = ["arm"]
    for text in PAIRS.values():
        head += [f"{text}: Spearman", "Pearson"]
    head.append("share, importance by seed: Spearman")
    body = []
    for arm in record["arms"]:
        row = [arm["arm"]]
        for pair in PAIRS:
            both = arm["correlations"].get(pair)
            row += [_correlation(both, "spearman"), _correlation(both, "pearson")]
        found = [cell["spearman"] for cell in arm["cells"].values() if cell["spearman"] is not None]
        row.append(f"{plain(min(found), 2)} to {plain(max(found), 2)}" if found else DASH)
        body.append(row)
    return grid_table(head, body, "dense", "Correlations over blocks, of means over seeds (95 % interval)")


def arms_table(record: Mapping[str, Any]) -> str:
    """What each arm is."""
    body = []
    for arm in record["arms"]:
        rate = f"{arm['learning_rate']:g}"
        body.append([arm["arm"], arm["sentence"], arm["optimizer"], rate])
    return grid_table(["arm", "what it does", "optimiser", "learning rate"], body, "texts", "Arms")


ARM_COLUMNS = (
    "arm", "against", "measure", "seeds", "mean", "difference", "standard_error", "interval_low", "interval_high",
    "confidence", "t_p", "holm_p", "sign_flip_p",
)  # fmt: skip


def arms_csv(record: Mapping[str, Any]) -> str:
    """One line an arm and measure, ARM_COLUMNS; shares as fractions."""
    rows = []
    for arm in record["arms"]:
        for name in MEASURES:
            found = arm["differences"].get(name, {})
            low, high = found.get("interval") or (None, None)
            numbers = [found.get(key) for key in ("mean", "standard_error")]
            ps = [found.get(key) for key in ("confidence", "t_p", "holm_p", "sign_flip_p")]
            rows.append((arm["arm"], arm["against"], name, *_seeds_and_mean(arm, name), *numbers, low, high, *ps))
    return csv_text(ARM_COLUMNS, rows)


def blocks_csv(record: Mapping[str, Any]) -> str:
    """arm, seed, block, importance, standard_error, share, fan_in."""
    rows = []
    for arm in record["arms"]:
        for seed, cell in arm["cells"].items():
            columns = (cell["importance"], cell["standard_errors"], cell["shares"], arm["fan_in"])
            rows += [(arm["arm"], int(seed), block, *row) for block, row in enumerate(zip(*columns, strict=True))]
    return csv_text(("arm", "seed", "block", "importance", "standard_error", "share", "fan_in"), rows)
