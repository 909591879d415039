"""Panels of a cascade study: one number a block over depth, and two against each other, an arm each.

Thin lines and small marks are single seeds, bold ones their mean. The first block may outweigh all others by far: what
exceeds the common axis stands at its top, marked by a triangle and with its number.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from geowidth.report import charts
from geowidth.report.charts import Frame, Scale, bands, curve, label, mark, rule
from geowidth.report.numbers import plain, shorten, tick_labels

HEIGHT = 178.0
OUTLIER = 2.5  # how many times the rest a first block is before the axis leaves it out


def axis_values(rows: Sequence[Sequence[float]]) -> list[float]:
    """The numbers that an axis common to `rows` (one number a block each) must hold: all, or, where the first blocks
    outweigh all others, those of the others."""
    rest = [value for row in rows for value in row[1:]]
    first = [row[0] for row in rows if len(row)]
    if rest and first and max(first) > OUTLIER * max(map(abs, rest)) > 0:
        return [*rest, 1.12 * max(rest)]
    return [*first, *rest]


def head(title: str, look: Any, width: float, unit: str, right: str = "") -> str:
    """The two lines above a panel: mark and name of the arm, unit and a fact."""
    parts = rule(0.0, 0.75, width, 0.75, "top") + mark(look.shape, 5.0, 11.2, 4.4, f"fill-arm{look.hue}")
    parts += label(15.0, 15.0, shorten(title, 43), f"name fill-arm{look.hue}") + label(0.0, 30.0, unit, "soft")
    return parts + (label(width, 30.0, right, "soft", "end") if right else "")


def depth_panel(
    title: str,
    look: Any,
    seeds: Mapping[str, Sequence[float]],
    mean: Sequence[float],
    dashed: tuple[str, Sequence[float]] | None,
    axis: Sequence[float],
    unit: str,
    decimals: int,
    width: float = 352.0,
) -> str:
    """Inside of a panel over depth. seeds: {seed: one number a block}. mean: over them. dashed: (name, numbers) of a
    line to compare with. axis: numbers the axis must hold."""
    frame = Frame(width, HEIGHT, top=46.0)
    parts = head(title, look, width, unit, "" if dashed is None else f"dashed: {dashed[0]}")
    if not mean:
        return parts + label(width / 2, HEIGHT / 2, "not trained yet", "soft", "middle")
    x = frame.layers(len(mean))
    y, ticks, words = charts.value_scale(list(axis), frame.y_end, frame.top + 4, log_from=1e300)
    parts += charts.grid(frame, y, ticks, words)
    parts += "".join(curve(_placed(x, y, values), f"seed stroke-arm{look.hue}") for values in seeds.values())
    if dashed is not None:
        parts += curve(_placed(x, y, dashed[1]), "base")
    parts += curve(_placed(x, y, mean), f"mean stroke-arm{look.hue}")
    for block, value in enumerate(mean):
        parts += _point(x(block), y, value, look, decimals, frame)
    tips = [_tip(block, mean, seeds, dashed, decimals) for block in range(len(mean))]
    return parts + charts.layer_axis(frame, len(mean), "block") + bands(frame, tips)


def _placed(x, y, values):
    return [(x(block), y(min(value, y.high))) for block, value in enumerate(values)]


def _point(x, y, value, look, decimals, frame):
    """The mark of a mean, at the top of the axis with its number where it lies beyond."""
    if value <= y.high:
        return mark(look.shape, x, y(value), 3.2, f"fill-arm{look.hue}")
    top = y(y.high)
    number = label(x + 8, top + 4, plain(value, decimals), f"fill-arm{look.hue}")
    return mark("up", x, top, 4.6, f"fill-arm{look.hue}") + number


def _tip(block, mean, seeds, dashed, decimals):
    low, high = (plain(pick(values[block] for values in seeds.values()), decimals) for pick in (min, max))
    tip = f"block {block}: {plain(mean[block], decimals)} (seeds {low} to {high})"
    return tip if dashed is None else f"{tip}; {dashed[0]} {plain(dashed[1][block], decimals)}"


def pair_panel(
    title: str,
    look: Any,
    points: Sequence[tuple[Sequence[float], Sequence[float]]],
    means: tuple[Sequence[float], Sequence[float]],
    axes: tuple[Sequence[float], Sequence[float]],
    words: str,
    width: float = 352.0,
) -> str:
    """Inside of a panel of importance against gradient share, a point a block. points: (shares, importance) of every
    seed. means: over them, numbered by block. axes: numbers that the axes must hold."""
    frame = Frame(width, HEIGHT + 20.0, top=46.0, bottom=40.0)
    parts = head(title, look, width, "importance, nats per token", words)
    if not means[0]:
        return parts + label(width / 2, HEIGHT / 2, "not trained yet", "soft", "middle")
    y, ticks, texts = charts.value_scale(list(axes[1]), frame.y_end, frame.top + 4, log_from=1e300)
    x = Scale(0.0, 1.06 * max(axes[0]), frame.left, frame.x_end)
    parts += charts.grid(frame, y, ticks, texts) + _share_axis(frame, x)
    for shares, importance in points:
        parts += "".join(
            mark(look.shape, x(a), y(min(b, y.high)), 2.2, f"spot fill-arm{look.hue}")
            for a, b in zip(shares, importance, strict=True)
        )
    for block, (a, b) in enumerate(zip(*means, strict=True)):
        parts += _numbered(x(a), y, b, block, look)
    return parts


def _numbered(x, y, value, block, look):
    """A mean with the number of its block, and its value where it lies beyond the axis."""
    tip = f"block {block}: importance {plain(value, 4)}"
    if value > y.high:
        top = y(y.high)
        words = label(x - 8, top + 4, f"{block}: {plain(value, 2)}", "soft", "end")
        return mark("up", x, top, 5.0, f"centre fill-arm{look.hue}", data_tip=tip) + words
    return mark(look.shape, x, y(value), 5.0, f"centre fill-arm{look.hue}", data_tip=tip) + label(
        x + 7, y(value) - 4, block, "tick"
    )


def _share_axis(frame, x):
    ticks, step = charts.nice_ticks(0.0, x.high, 6)
    numbers = [
        label(x(tick), frame.y_end + 15, words, "tick", "middle")
        for tick, words in zip(ticks, tick_labels(ticks, step), strict=True)
    ]
    return "".join(numbers) + label(frame.x_end, frame.y_end + 31, "share of the gradient norms", "soft", "end")
