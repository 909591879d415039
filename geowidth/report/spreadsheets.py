"""The CSV files beside the page: one header line, then one line per fact, numbers that read back exactly.

Texts that begin like a formula (a name of an arm, say) get an apostrophe before them, as spreadsheets write it. An
empty cell is a number that is not known; infinities and NaN are written inf, -inf and nan, which `float` reads.
"""

import csv
import io
import math

from geowidth.progress import printable
from geowidth.report.profiles import ESTIMATORS, geometries_of, signal, statistics_of, unit_of, without_large_norms
from geowidth.report.widths import arm_widths, at_bounds, bound

_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # the last four: = + - @ of full width


def _cell(value):
    if value is None:
        return ""
    if isinstance(value, float):
        return (
            "nan"
            if math.isnan(value)
            else "inf"
            if value == math.inf
            else "-inf"
            if value == -math.inf
            else repr(value)
        )
    return _plain(value) if isinstance(value, str) else value


def _plain(text):
    """`text` with its control characters shown, and an apostrophe before what a spreadsheet would run as a formula."""
    return ("'" if text.startswith(_FORMULA) else "") + printable(text)


def csv_text(columns, rows):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def work_csv(run):
    """layer, statistic, geometry, unit, value. Dimensions have no geometry and the statistic dimension_ESTIMATOR.

    Where some layer has tokens of very large norm, raw signals stand there without them too: STATISTIC_no_large_norms.
    """
    work = run.work or {}
    units = {geometry: unit_of(geometry).split(",")[0] for geometry in geometries_of(work)}
    rows = [
        (layer, statistic, geometry, units[geometry], value)
        for statistic in statistics_of(work)
        for geometry in units
        for layer, value in enumerate(signal(work, statistic, geometry))
    ]
    for name in statistics_of(work):
        rest = enumerate(without_large_norms(work, name))
        rows += [(layer, f"{name}_no_large_norms", "raw", units["raw"], value) for layer, value in rest]
    for name in ESTIMATORS:
        values = (work.get("dimension") or {}).get(name) or []
        rows += [(i, f"dimension_{name}", "", "dimensions", v) for i, v in enumerate(values)]
    return csv_text(("layer", "statistic", "geometry", "unit", "value"), rows)


def widths_csv(run):
    """arm, layer, width, base_width, floor, cap, at ("floor", "cap" or empty)."""
    rows = []
    for name in run.arm_names:
        schedule, widths = run.schedules.get(name), arm_widths(run, name)
        floors, caps = at_bounds(schedule, widths)
        for i, width in enumerate(widths):
            at = "floor" if i in floors else "cap" if i in caps else ""
            limits = bound(schedule, "floor", i), bound(schedule, "cap", i)
            rows.append((name, i, width, (schedule or {}).get("base_width"), *limits, at))
    return csv_text(("arm", "layer", "width", "base_width", "floor", "cap", "at"), rows)


def losses_csv(run):
    """arm, seed, step, split, loss (nats per byte, or token), tokens, seconds: every line of every metrics.jsonl."""
    keys = ("step", "split", "loss", "tokens", "seconds")
    rows = [
        (name, seed, *(line.get(key) for key in keys))
        for name in run.arm_names
        for seed, training in run.arms.get(name, {}).items()
        for line in training.metrics
    ]
    return csv_text(("arm", "seed", *keys), rows)


COMPARISON_COLUMNS = (
    "arm", "baseline", "seeds", "mean_loss", "bits_per_byte", "difference", "standard_error", "interval_low",
    "interval_high", "confidence", "sign_flip_p", "effect", "power", "seeds_needed", "parameters", "tokens", "flops",
    "seconds",
)  # fmt: skip


def comparison_csv(rows, baseline):
    """One line per arm, COMPARISON_COLUMNS; losses and differences in nats per byte (or token), costs of one seed."""
    lines = []
    for row in rows:
        low, high = row.interval or (None, None)
        power = [row.power.get(key) for key in ("effect", "power", "seeds")]
        lines.append((
            row.arm, baseline, len(row.losses), row.mean_loss, row.bits_per_byte, row.difference, row.standard_error,
            low, high, row.confidence, row.sign_flip_p, *power, row.parameters, row.tokens, row.flops, row.seconds,
        ))  # fmt: skip
    return csv_text(COMPARISON_COLUMNS, lines)
