"""Loss over training, the paired difference over training, and the final paired differences with their intervals."""

import math

from geowidth.report import charts
from geowidth.report.charts import Frame, Scale, curve, element, label, mark, rule
from geowidth.report.numbers import compact, is_finite, shorten, signed, tick_labels
from geowidth.train.evidence import LOSS_UNIT


def loss_series(run, name):
    """Validation loss of an arm: {seed: [(tokens, loss)]}, seeds without one left out."""
    found = {seed: [(t, v) for _, t, v in one.validation()] for seed, one in run.arms.get(name, {}).items()}
    return {seed: points for seed, points in found.items() if points}


def difference_series(run, name, baseline):
    """Loss minus the baseline's loss of the same seed, wherever both were evaluated: {seed: [(tokens, difference)]}."""
    ours, theirs = loss_series(run, name), loss_series(run, baseline)
    result = {}
    for seed in sorted(set(ours) & set(theirs)):
        reference = dict(theirs[seed])
        result[seed] = [(t, v - reference[t]) for t, v in ours[seed] if t in reference]
    return {seed: points for seed, points in result.items() if points}


def mean_series(series):
    """The mean over seeds at every token count where all seeds have a value."""
    if not series:
        return []
    tables = [dict(points) for points in series.values()]
    common = set(tables[0]).intersection(*tables[1:])
    return [(tokens, sum(t[tokens] for t in tables) / len(tables)) for tokens in sorted(common)]


def _token_axis(frame, highest):
    x = Scale(0.0, highest or 1.0, frame.left, frame.x_end)
    ticks, step = charts.nice_ticks(0.0, x.high, max(4, int((frame.x_end - frame.left) / 65)))
    parts = [
        label(x(t), frame.y_end + 15, w, "tick", "middle") for t, w in zip(ticks, tick_labels(ticks, step), strict=True)
    ]
    parts.append(label(frame.left - 6, frame.y_end + 15, "tokens", "tick", "end"))
    return x, "".join(parts)


def _lines(x, y, series, look, name, kind, unit):
    """Seeds thin, their mean bold, in a group that the legend can switch; notes for the pointer at the mean."""

    def place(points):
        return [(x(t), y(v)) if math.isfinite(v) else None for t, v in points]

    parts = [curve(place(p), f"seed stroke-arm{look.hue}") for p in series.values()] if len(series) > 1 else []
    mean = mean_series(series)
    parts.append(curve(place(mean), f"mean stroke-arm{look.hue} dash{look.dash}"))
    for tokens, value in mean:
        if math.isfinite(value):
            words = f"{value:.4f}" if kind == "loss" else signed(value, 4)
            tip = f"{name}, {compact(tokens)} tokens: {words} {unit} (mean of {len(series)})"
            parts.append(mark("circle", x(tokens), y(value), 7.0, "band", data_tip=tip))
    return element("g", "".join(parts), data_arm=look.index)


def _end_labels(frame, ends, looks):
    """Arm names at the ends of their lines, moved apart where they would overlap."""
    names = sorted(ends, key=lambda name: ends[name][1])
    low = frame.top + 4
    places = charts.spread([min(max(ends[n][1], low), frame.y_end) for n in names], 14.0, low, frame.y_end)
    parts = []
    for name, place in zip(names, places, strict=True):
        look, (x, y) = looks[name], ends[name]
        y = min(max(y, frame.top), frame.y_end)
        content = rule(x + 2, y, frame.x_end + 10, place, "leader")
        content += mark(look.shape, frame.x_end + 15, place, 3.4, f"fill-arm{look.hue}")
        content += label(frame.x_end + 22, place + 3.9, shorten(name, 15), f"fill-arm{look.hue}")
        parts.append(element("g", content, data_arm=look.index))
    return "".join(parts)


def _series_chart(all_series, looks, width, height, title, unit, kind, values, zero_words=None):
    room = 30.0 + 6.4 * max([min(len(n), 15) for n in all_series], default=4)
    frame = Frame(width, height, right=room, top=42.0)
    head = rule(0.0, 0.75, width, 0.75, "top") + label(0.0, 15.0, title, "name") + label(0.0, 30.0, unit, "soft")
    points = [p for series in all_series.values() for line in series.values() for p in line]
    if not points:
        return head + label(width / 2, height / 2, "nothing trained yet", "soft", "middle")
    x, axis = _token_axis(frame, max(t for t, _ in points))
    y, ticks, words = charts.value_scale(values, frame.y_end, frame.top + 6, zero=False)
    clip = f"clip-{kind}-{int(width)}"
    area = element(
        "rect", x=frame.left, y=frame.top, width=frame.x_end - frame.left + 1, height=frame.y_end - frame.top
    )
    lines, ends = [], {}
    for name, series in all_series.items():
        lines.append(_lines(x, y, series, looks[name], name, kind, unit.partition(",")[0]))
        last = [(t, v) for t, v in mean_series(series) if math.isfinite(v)]
        if last:
            ends[name] = (x(last[-1][0]), y(last[-1][1]))
    body = element("clipPath", area, id=clip) + element("g", "".join(lines), clip_path=f"url(#{clip})")
    if zero_words:
        head += label(frame.x_end, 30.0, zero_words, "soft", "end")
    return head + charts.grid(frame, y, ticks, words) + axis + body + _end_labels(frame, ends, looks)


def loss_chart(run, looks, width=560.0, height=300.0):
    """Inside of the loss chart: validation loss over tokens."""
    series = {name: loss_series(run, name) for name in run.arm_names}
    series = {name: lines for name, lines in series.items() if lines}
    values = [v for lines in series.values() for points in lines.values() for _, v in points]
    return _series_chart(series, looks, width, height, "Validation loss", run.loss_unit, "loss", values)


def difference_chart(run, looks, width=560.0, height=300.0):
    """Inside of the paired difference over training. The axis fits the last two thirds; earlier values may leave it."""
    names = [name for name in run.arm_names if name != run.baseline]
    series = {name: difference_series(run, name, run.baseline) for name in names}
    series = {name: lines for name, lines in series.items() if lines}
    points = [p for lines in series.values() for line in lines.values() for p in line if math.isfinite(p[1])]
    start = max((t for t, _ in points), default=0) / 3
    late = [v for t, v in points if t >= start]
    values = [*late, 0.0]
    unit = f"{run.loss_unit}, same seed" + (
        "; early values may leave the axis" if any(t < start for t, _ in points) else ""
    )
    title = f"Loss minus {shorten(run.baseline, 20)}\u2019s"
    return _series_chart(series, looks, width, height, title, unit, "difference", values, None)


def _half_span(rows):
    """The axis must hold every seed; an interval far wider than the seeds is cut, with an arrow."""
    seeds = [abs(d) for row in rows for d in row.differences.values() if is_finite(d)]
    ends = [abs(v) for row in rows for v in row.interval or () if is_finite(v)]
    if not seeds and not ends:
        return 1.0
    largest = max(seeds, default=max(ends, default=1.0)) or 1e-6
    return min(max([largest, *ends]), 4 * largest) * 1.06


PAIRED_WORDS = ("Final loss, paired by seed", "\u2190 lower loss", "higher loss \u2192")


def paired_chart(rows, looks, baseline, width=640.0, row_height=46.0, words=PAIRED_WORDS):
    """Inside of the paired plot, and its height: per arm every seed's difference, their mean and the t interval.

    words: its title, and what lies left and right of zero.
    """
    rows = [row for row in rows if not row.is_baseline]
    left = 30.0 + 6.6 * max([min(len(row.arm), 15) for row in rows], default=6)
    frame = Frame(width, 62.0 + row_height * max(len(rows), 1) + 26.0, left=left, right=16.0, top=62.0, bottom=26.0)
    head = rule(0.0, 0.75, width, 0.75, "top") + label(0.0, 15.0, words[0], "name")
    head += label(0.0, 30.0, f"{rows[0].unit if rows else LOSS_UNIT} minus {shorten(baseline, 20)}\u2019s", "soft")
    if not rows:
        return head + label(width / 2, 84.0, "only one arm: nothing to compare", "soft", "middle"), frame.height
    span = _half_span(rows)
    x = Scale(-span, span, frame.left, frame.x_end)
    ticks, step = charts.nice_ticks(-span, span, 8 if width > 500 else 5)
    axis = []
    for tick, text in zip(ticks, tick_labels(ticks, step), strict=True):
        axis.append(rule(x(tick), frame.top - 8, x(tick), frame.y_end, "zero" if abs(tick) < step / 2 else "grid"))
        axis.append(label(x(tick), frame.y_end + 16, ("+" if tick > step / 2 else "") + text, "tick", "middle"))
    axis.append(label(x(0) - 8, frame.top - 14, words[1], "soft", "end"))
    axis.append(label(x(0) + 8, frame.top - 14, words[2], "soft"))
    body = [_paired_row(row, looks[row.arm], x, frame, i, row_height) for i, row in enumerate(rows)]
    return head + "".join(axis) + "".join(body), frame.height


def _paired_row(row, look, x, frame, place, row_height):
    y = frame.top + row_height * (place + 0.5)
    parts = [
        mark(look.shape, 6.0, y, 4.2, f"fill-arm{look.hue}"),
        label(16.0, y + 4, shorten(row.arm, 15), f"name fill-arm{look.hue}"),
    ]
    if row.interval and all(map(is_finite, row.interval)):
        low, high = (min(max(v, x.low), x.high) for v in row.interval)
        parts.append(rule(x(low), y, x(high), y, f"interval stroke-arm{look.hue}"))
        for value, inside, turn in ((row.interval[0], low, -1), (row.interval[1], high, 1)):
            parts.append(_interval_end(x(inside), y, turn, value == inside, look))
    for seed, value in row.differences.items():
        if is_finite(value):
            tip = f"{row.arm}, seed {seed}: {signed(value, 4)} {row.unit}"
            parts.append(mark(look.shape, x(value), y + 12, 3.6, f"spot fill-arm{look.hue}", data_tip=tip))
    if is_finite(row.difference):
        tip = f"{row.arm}, mean: {signed(row.difference, 4)} {row.unit}"
        parts.append(mark("diamond", x(row.difference), y, 6.0, f"centre fill-arm{look.hue}", data_tip=tip))
    else:
        parts.append(label(x(0) + 8, y + 4, "not compared yet", "soft"))
    return element("g", "".join(parts), data_arm=look.index)


def _interval_end(x, y, turn, inside, look):
    if inside:
        return rule(x, y - 5, x, y + 5, f"interval stroke-arm{look.hue}")
    points = [(x - 6 * turn, y - 5), (x + 2 * turn, y), (x - 6 * turn, y + 5)]
    return element(
        "polygon", points=" ".join(f"{charts.pixel(a)},{charts.pixel(b)}" for a, b in points),
        class_=f"fill-arm{look.hue}",
    )  # fmt: skip
