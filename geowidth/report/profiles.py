"""Work over depth: nine small charts (statistic by geometry), the intrinsic dimension, and the stand-alone SVG."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from geowidth.errors import UserError
from geowidth.files import PathLike
from geowidth.report import charts, style
from geowidth.report.charts import Frame, bands, curve, element, escape, label, mark, rule
from geowidth.report.folder import as_record
from geowidth.report.numbers import DASH, is_finite, is_number, layer_list, significant
from geowidth.signals import GEOMETRIES, STATISTICS

if TYPE_CHECKING:
    from geowidth.artifacts.work_profile import WorkProfile

STATISTIC_NAMES = {
    "shift": "Shift",
    "gw": "Gromov\u2013Wasserstein",
    "topology": "Topology",
    "gw_entropic": "Entropic GW",
}
UNITS = {"raw": "length", "spherical": "radians", "hyperbolic": "length, curvature \u22121"}
UNIT_WORDS = {"raw": "", "spherical": " rad", "hyperbolic": ""}
ESTIMATORS = {
    "twonn_mle": "TwoNN maximum likelihood",
    "twonn_fit": "TwoNN fit",
    "mle": "MLE, pooled inverses",
    "mle_mean": "MLE, mean over points",
}


def signal(work, statistic, geometry):
    """One signal of a work record as a list of floats (NaN where there is no number), or [] if it was not measured."""
    values = (work.get("work") or {}).get(geometry) or {}
    return [float(v) if is_number(v) else math.nan for v in values.get(statistic) or []]


def statistic_name(statistic):
    """What a statistic is called in a heading; its own name where the report does not know it."""
    return STATISTIC_NAMES.get(statistic, statistic)


def statistics_of(work):
    """The three statistics of the nine signals, then whatever else a work record holds."""
    found = [name for signals in (work.get("work") or {}).values() for name in signals]
    return list(dict.fromkeys([*STATISTICS, *found]))


def geometries_of(work):
    """The three geometries of the nine signals, then whatever else a work record holds."""
    return list(dict.fromkeys([*GEOMETRIES, *(work.get("work") or {})]))


def unit_of(geometry):
    """The unit of a geometry's signals in words; "" for one that nobody here knows."""
    if geometry in UNITS:
        return UNITS[geometry]
    from geowidth import geometry as known  # loads torch: only where a record holds what an extension brought

    found = known.GEOMETRIES.get(geometry)
    return found.unit if found else ""


def without_large_norms(work, statistic):
    """A raw signal without the tokens of very large norm, [] where the record has none or no layer differs."""
    values = (work.get("raw_without_large_norms") or {}).get(statistic) or []
    values = [float(v) if is_number(v) else math.nan for v in values]
    same = [*map(repr, values)] == [*map(repr, signal(work, statistic, "raw"))]  # nan is not equal to itself
    return [] if same else values


def quantile_bands(work, statistic, geometry):
    """(low, high) of a signal's subsampling band in every layer, None where none was taken; [] without any."""
    details = work.get("details")
    found = []
    for layer in details if isinstance(details, list) else []:
        pair = ((layer.get("bands") or {}).get(geometry) or {}).get(statistic)
        good = isinstance(pair, list) and len(pair) == 2 and all(map(is_finite, pair))
        found.append(tuple(pair) if pair and good else None)
    return found if any(found) else []


def layer_count(work):
    """Layers of a work record: the longest list in it."""
    lists = [signal(work, s, g) for s in statistics_of(work) for g in geometries_of(work)]
    return max([len(work.get("widths") or []), *map(len, lists)])


def odd_layers(values):
    """Layers whose value is infinite, and layers whose value is not a number."""
    infinite = [layer for layer, v in enumerate(values) if math.isinf(v)]
    return infinite, [layer for layer, v in enumerate(values) if math.isnan(v)]


def peak(values):
    """(layer, ratio) of the largest finite value: the ratio is to the smallest, None where that says nothing."""
    finite = [(v, -layer) for layer, v in enumerate(values) if math.isfinite(v)]
    if not finite:
        return None
    high, low = max(finite), min(finite)
    return -high[1], high[0] / low[0] if low[0] > 0 and len(finite) > 1 else None


def peak_words(values):
    """ "peak: layer 5, 3.2 times the lowest" for the head of a panel; "" where there is nothing to compare."""
    found = peak(values)
    if found is None or len(values) < 2:
        return ""
    ratio = f", {found[1]:.3g}\u00d7 lowest" if found[1] and found[1] < 1e6 else ""
    return f"peak: layer {found[0]}{ratio}"


def _odd_marks(frame, x, values):
    """Marks for what cannot be drawn as a height: the infinite at the top with a stem, the missing at the foot."""
    parts = []
    for layer, value in enumerate(values):
        if math.isinf(value):
            parts.append(rule(x(layer), frame.top + 12, x(layer), frame.y_end, "odd-stem"))
            parts.append(label(x(layer), frame.top + 9, "\u221e" if value > 0 else "\u2212\u221e", "odd", "middle"))
        elif math.isnan(value):
            parts.append(label(x(layer), frame.y_end - 2, "\u00d7", "odd", "middle"))
    return "".join(parts)


def _height(y, value):
    """Pixel height of a value, None where it has none (not finite, or not positive on a logarithmic axis)."""
    return y(value) if math.isfinite(value) and (value > 0 or not y.log) else None


def _whiskers(x, y, ranges):
    """A bar from the low to the high quantile of every layer that has them."""
    return "".join(
        rule(x(layer), y(pair[0]), x(layer), y(pair[1]), "whisker")
        for layer, pair in enumerate(ranges)
        if pair and (pair[0] > 0 or not y.log)
    )


def _trace(frame, x, y, values):
    """Line, faint area and dots of one signal; dots only while they do not merge, the largest always."""
    heights = [_height(y, v) for v in values]
    points = [None if h is None else (x(layer), h) for layer, h in enumerate(heights)]
    foot = frame.y_end if y.log else y(max(y.low, 0.0))
    area, run = "", []
    for point in [*points, None]:
        if point is not None:
            run.append(point)
            continue
        if len(run) > 1:
            area += curve([(run[0][0], foot), *run, (run[-1][0], foot)], "area")
        run = []
    found = peak(values)
    crowded = len(values) > 48
    alone = {i for i, p in enumerate(points) if p and not any(points[max(i - 1, 0) : i] + points[i + 1 : i + 2])}
    dots = [
        mark("circle", *point, 3.4 if layer == found[0] else 2.3, "dot open" if layer == found[0] else "dot")
        for layer, point in enumerate(points)
        if point and (not crowded or layer == found[0] or layer in alone)
    ]
    return area + curve(points, "line") + "".join(dots)


def work_panel(work, statistic, geometry, width=352.0, height=172.0, keyed=False):
    """The inside of one panel: name, unit, peak, axes, the signal with odd values marked, columns for the pointer.

    A dashed line leaves out the tokens of very large norm, where there are any in a raw signal.
    """
    values = signal(work, statistic, geometry)
    rest = without_large_norms(work, statistic) if geometry == "raw" else []
    frame = Frame(width, height, top=42.0)
    ranges = quantile_bands(work, statistic, geometry)
    shown = [*values, *rest, *(v for pair in ranges if pair for v in pair)]
    y, ticks, words = charts.value_scale(shown, frame.y_end, frame.top + (14 if any(map(math.isinf, values)) else 4))
    name = element(
        "text",
        element("tspan", escape(statistic_name(statistic)), class_="name")
        + element("tspan", escape(geometry), dx="6"),
        x=0.0, y=15.0,
    )  # fmt: skip
    head = rule(0.0, 0.75, width, 0.75, "top keyed" if keyed else "top") + name
    unit = " \u00b7 ".join(filter(None, [unit_of(geometry), "log scale" if y.log else ""]))
    if not values:
        return head + label(0.0, 30.0, unit, "soft") + label(width / 2, height / 2, "not measured", "soft", "middle")
    head += label(0.0, 30.0, unit, "soft")
    head += label(width, 30.0, peak_words(values), "soft", "end")
    if keyed:
        head += label(width, 15.0, "sets the widths", "key", "end")
    elif rest:
        head += label(width, 15.0, "dashed: no outliers", "soft", "end")
    x = frame.layers(len(values))
    if not ticks:
        body = label((frame.left + frame.x_end) / 2, (frame.top + frame.y_end) / 2, "no finite value", "soft", "middle")
    else:
        body = charts.grid(frame, y, ticks, words) + _whiskers(x, y, ranges)
        points = [None if (h := _height(y, v)) is None else (x(i), h) for i, v in enumerate(rest)]
        body += curve(points, "line thin dash2") + _trace(frame, x, y, values)
    word = UNIT_WORDS.get(geometry, "")
    tips = [f"layer {i}: {significant(v)}{word}" for i, v in enumerate(values)]
    if rest:
        tips = [f"{tip} ({significant(v)} without outliers)" for tip, v in zip(tips, rest, strict=True)]
    return head + body + _odd_marks(frame, x, values) + charts.layer_axis(frame, len(values)) + bands(frame, tips)


def work_words(work, statistic, geometry):
    """The panel in words, for screen readers and as its description."""
    values = signal(work, statistic, geometry)
    if not values:
        return f"{statistic_name(statistic)} in {geometry} geometry was not measured."
    found = peak(values)
    unit = unit_of(geometry) or "unknown"
    words = f"{len(values)} layers, unit {unit}. "
    if found:
        low = min(v for v in values if math.isfinite(v))
        words += f"Largest {significant(values[found[0]])} in layer {found[0]}, smallest {significant(low)}."
    if geometry == "raw" and without_large_norms(work, statistic):
        words += " A dashed line leaves out the tokens of over five times the median norm."
    return words + "".join(f" {note}" for note in odd_notes(statistic, values))


def odd_notes(statistic, values):
    """Sentences about values that are no finite numbers: which layers and what it means."""
    infinite, missing = odd_layers(values)
    notes = []
    if infinite:
        why = "the two diagrams hold unequal numbers of bars that never die" if statistic == "topology" else "overflow"
        notes.append(f"Infinite (\u221e) in layer{'s' * (len(infinite) > 1)} {layer_list(infinite)}: {why}.")
    if missing:
        notes.append(f"No number (\u00d7) in layer{'s' * (len(missing) > 1)} {layer_list(missing)}.")
    return notes


def dimension_panel(work, width=352.0, height=172.0):
    """Inside of the intrinsic-dimension panel: the default estimator bold, the others thin, each named at its end."""
    dimension = work.get("dimension") or {}
    named = [name for name in ESTIMATORS if dimension.get(name)]
    series = {n: [float(v) if is_number(v) else math.nan for v in dimension[n]] for n in named}
    frame = Frame(width, height, right=84.0, top=42.0)
    head = rule(0.0, 0.75, width, 0.75, "top") + label(0.0, 15.0, "Intrinsic dimension", "name")
    head += label(0.0, 30.0, "dimensions, of the states that enter each FFN", "soft")
    if not series:
        return head + label(width / 2, height / 2, "not measured", "soft", "middle")
    count = max(map(len, series.values()))
    x = frame.layers(count)
    y, ticks, words = charts.value_scale(sum(series.values(), []), frame.y_end, frame.top + 4)
    body = charts.grid(frame, y, ticks, words)
    main = "twonn_mle" if "twonn_mle" in series else named[0]
    for name in sorted(series, key=lambda n: n == main):
        points = [None if _height(y, v) is None else (x(i), y(v)) for i, v in enumerate(series[name])]
        body += curve(points, "line" if name == main else f"line thin dash{2 + named.index(name)}")
        dotted = (name == main and count <= 48) or count == 1  # one layer has no line to show
        body += "".join(mark("circle", *p, 2.3, "dot" if name == main else "dot open") for p in points if p and dotted)
    body += _odd_marks(frame, x, series[main]) + _end_names(frame, x, y, series, main)
    tips = [
        f"layer {i}: "
        + "; ".join(f"{ESTIMATORS[n]} {significant(series[n][i], 3) if i < len(series[n]) else DASH}" for n in named)
        for i in range(count)
    ]
    return head + body + charts.layer_axis(frame, count) + bands(frame, tips)


def _end_names(frame, x, y, series, main):
    """Estimator names right of the panel, each led to the last point of its line."""
    last = max(map(len, series.values())) - 1
    ends = {n: next((v for v in reversed(s) if _height(y, v) is not None), None) for n, s in series.items()}
    ends = {n: y(v) for n, v in ends.items() if v is not None}
    places = charts.spread(list(ends.values()), 13.0, frame.top + 4, frame.y_end - 2)
    short = {"twonn_mle": "TwoNN ML", "twonn_fit": "TwoNN fit", "mle": "MLE pooled", "mle_mean": "MLE mean"}
    parts = []
    for (name, height), place in zip(ends.items(), places, strict=True):
        parts.append(rule(x(last) + 5, height, frame.x_end + 6, place, "leader"))
        parts.append(label(frame.x_end + 9, place + 3.8, short[name], "key" if name == main else "soft"))
    return "".join(parts)


def profile_svg(
    work: WorkProfile | dict[str, Any] | PathLike,
    *,
    key: tuple[str, str] | None = None,
    title: str = "Geometric work of each FFN layer",
) -> str:
    """The profiles of a work record as one stand-alone SVG document (text), light or dark as its reader prefers.

    A row per statistic that was measured.

    `work`: a WorkProfile, the content of a work.json as a dict, or the path of one. `key`: the (statistic, geometry)
    pair to mark as the one that sets the widths, if any. Raises UserError when the record holds no work.
    """
    work = as_record(work, "geowidth.work")
    layers = layer_count(work)
    if not layers:
        raise UserError("this work record holds no layer; measure a model first: geowidth measure")
    wide, high, gap, margin, top = 300.0, 158.0, 30.0, 20.0, 58.0
    geometries = geometries_of(work)
    measured = [s for s in statistics_of(work) if any(signal(work, s, g) for g in geometries)]
    width, height = 2 * margin + len(geometries) * (wide + gap) - gap, top + len(measured) * (high + 16) + margin - 8
    subtitle = f"{layers} layer{'s' * (layers != 1)}; rows: statistic, columns: geometry"
    parts = [
        element("rect", width=width, height=height, class_="paper"),
        label(margin, 30.0, title, "head"),
        label(width - margin, 30.0, subtitle, "soft", "end"),
    ]
    for row, statistic in enumerate(measured):
        for column, geometry in enumerate(geometries):
            x, y = margin + column * (wide + gap), top + row * (high + 16)
            panel = work_panel(work, statistic, geometry, wide, high, keyed=key == (statistic, geometry))
            parts.append(element("g", panel, transform=f"translate({charts.pixel(x)} {charts.pixel(y)})"))
    words = " ".join(f"{s}, {g}: {work_words(work, s, g)}" for s in measured for g in geometries)
    drawing = charts.svg(
        element("style", escape(style.chart_css())) + "".join(parts), width, height, title, words, "work"
    )
    size = f'xmlns="http://www.w3.org/2000/svg" width="{charts.pixel(width)}" height="{charts.pixel(height)}"'
    return drawing.replace("<svg ", f"<svg {size} ", 1) + "\n"
