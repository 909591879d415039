"""Parts every figure is made of: escaped SVG elements, scales, ticks, axes, marks, labels that do not overlap.

Everything returns text. Numbers are printed with at most two decimals, so equal data gives equal bytes. Colours come
from classes (see style.py), never from here; no part tells things apart by colour alone.
"""

import math
import re
from dataclasses import dataclass

from geowidth.report.numbers import tick_labels

# What XML 1.0 cannot hold, lone surrogates (file names that are not UTF-8) included; the other control characters; and
# the marks that turn the direction of what is written after them.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}


def clean(value):
    """`value` as text that UTF-8 and XML can hold: every other character becomes U+FFFD."""
    return _FORBIDDEN.sub("\ufffd", str(value))


def escape(value):
    """`value` as text that is safe between tags and inside quoted attributes."""
    return re.sub("[&<>\"']", lambda match: _ENTITIES[match[0]], clean(value))


def pixel(value):
    """A coordinate as text: two decimals at most, never "-0"."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def element(name, content=None, **attributes):
    """One element. `content` is markup already; attribute values get escaped; data_tip becomes data-tip."""
    words = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        value = pixel(value) if isinstance(value, float) else escape(value)
        words.append(f'{key.rstrip("_").replace("_", "-")}="{value}"')
    return f"<{' '.join(words)}/>" if content is None else f"<{' '.join(words)}>{content}</{name}>"


def label(x, y, words, class_=None, anchor=None, **attributes):
    """A text element; `words` is plain text."""
    return element("text", escape(words), x=float(x), y=float(y), class_=class_, text_anchor=anchor, **attributes)


def rule(x1, y1, x2, y2, class_):
    """A straight line."""
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def curve(points, class_, **attributes):
    """A path through `points` ((x, y) or None, where the line breaks); a lone point draws nothing here."""
    parts, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        parts.append(f"{pen}{pixel(point[0])} {pixel(point[1])}")
        pen = "L"
    return element("path", d="".join(parts), class_=class_, **attributes) if parts else ""


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] of the data onto [start, end] pixels, linearly or by the logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value):
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        value = math.log10(value) if self.log else value
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def nice_step(span, count):
    """The smallest of 1, 2, 2.5, 5 times a power of ten that cuts `span` into at most `count` pieces."""
    rough = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


def nice_ticks(low, high, count=4):
    """Round numbers within [low, high], about `count` of them, and their step."""
    step = nice_step(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)], step


def value_scale(values, start, end, zero=True, log_from=300.0):
    """A scale that ends on a round number above the finite `values`, and its ticks.

    It starts at zero (`zero`), so heights compare as the numbers do, unless positive values span more than a factor
    `log_from`: then it is logarithmic. Without `zero` it spans the values. No finite value: a scale without ticks.
    """
    values = [v for v in values if math.isfinite(v)]
    if not values:
        return Scale(0.0, 1.0, start, end), [], []
    low, high = min(values), max(values)
    if zero and low > 0 and high / low >= log_from:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) + 1e-12)
        ticks = [10.0**power for power in range(first, last + 1, max(1, (last - first) // 4))]
        return Scale(10.0**first, 10.0**last, start, end, log=True), ticks, [tick_labels([t], t)[0] for t in ticks]
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(abs(high), abs(low)):
        low, high = (0.0, 1.0) if high == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    step = nice_step(high - low, 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    low, high, ticks = first * step, last * step, [index * step for index in range(first, last + 1)]
    return Scale(low, high, start, end), ticks, tick_labels(ticks, step)


@dataclass(frozen=True)
class Frame:
    """The plotting area of a panel: outer size and the four margins, in pixels."""

    width: float
    height: float
    left: float = 46.0
    right: float = 10.0
    top: float = 34.0
    bottom: float = 24.0

    @property
    def x_end(self):
        return self.width - self.right

    @property
    def y_end(self):
        return self.height - self.bottom

    def layers(self, count):
        """A scale on which layer l of `count` stands in the middle of its band."""
        return Scale(-0.5, count - 0.5, self.left, self.x_end)


def grid(frame, scale, ticks, labels):
    """Hairlines across the panel with the numbers left of them."""
    parts = []
    for tick, words in zip(ticks, labels, strict=True):
        y = scale(tick)
        parts.append(rule(frame.left, y, frame.x_end, y, "zero" if tick == 0 and not scale.log else "grid"))
        parts.append(label(frame.left - 6, y + 3.8, words, "tick", "end"))
    return "".join(parts)


def layer_ticks(count, room):
    """Layer numbers to print under an axis `room` pixels wide: round ones, with the first and the last."""
    wide = 9.0 + 7.0 * len(str(count - 1))
    most = max(2, int(room / wide))
    if count <= most:
        return list(range(count))
    step = next((s for s in (2, 4, 5, 10, 20, 25, 50, 100, 200, 500, 1000) if count / s <= most), count)
    ticks = list(range(0, count, step))
    if count - 1 - ticks[-1] < max(step * 0.6, wide * count / room) and len(ticks) > 1:
        ticks.pop()
    return sorted({*ticks, count - 1})


def layer_axis(frame, count, word="layer"):
    """Layer numbers under the panel, the word for them in the margin before."""
    x = frame.layers(count)
    y = frame.y_end + 15
    numbers = [label(x(tick), y, tick, "tick", "middle") for tick in layer_ticks(count, frame.x_end - frame.left)]
    return label(frame.left - 6, y, word, "tick", "end") + "".join(numbers)


def bands(frame, tips):
    """One invisible column per layer with what the pointer is told; the page lights up equal layers together."""
    x, wide = frame.layers(len(tips)), (frame.x_end - frame.left) / len(tips)
    return "".join(
        element(
            "rect", x=float(x(layer) - wide / 2), y=float(frame.top), width=float(wide),
            height=float(frame.y_end - frame.top), class_="band", data_layer=layer, data_tip=tip,
        )
        for layer, tip in enumerate(tips)
    )  # fmt: skip


_SHAPES = {
    "square": [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
    "up": [(0, -1.15), (1.1, 0.85), (-1.1, 0.85)],
    "diamond": [(0, -1.3), (1.15, 0), (0, 1.3), (-1.15, 0)],
    "down": [(0, 1.15), (1.1, -0.85), (-1.1, -0.85)],
    "plus": [(-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4),
             (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)],
}  # fmt: skip
SHAPES = ("circle", *_SHAPES)


def mark(shape, x, y, size, class_, **attributes):
    """A filled mark of one of SHAPES, `size` pixels from its middle to its edge."""
    if shape == "circle":
        return element("circle", cx=float(x), cy=float(y), r=float(size), class_=class_, **attributes)
    points = " ".join(f"{pixel(x + size * dx)},{pixel(y + size * dy)}" for dx, dy in _SHAPES[shape])
    return element("polygon", points=points, class_=class_, **attributes)


def spread(positions, gap, low, high):
    """`positions` moved as little as needed to lie `gap` apart, in their order, within [low, high] where they fit."""
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    placed: list[float] = []
    for index in order:
        placed.append(max(positions[index], placed[-1] + gap if placed else low))
    limit = high
    for rank in range(len(placed) - 1, -1, -1):
        placed[rank] = min(placed[rank], limit)
        limit = placed[rank] - gap
    result = [0.0] * len(positions)
    for rank, index in enumerate(order):
        result[index] = placed[rank]
    return result


def svg(content, width, height, title, description, identifier, class_="chart"):
    """An SVG that names itself to screen readers. `identifier` must be unique on the page."""
    names = element("title", escape(title), id=f"{identifier}-t") + element(
        "desc", escape(description), id=f"{identifier}-d"
    )
    return element(
        "svg", names + content, viewBox=f"0 0 {pixel(width)} {pixel(height)}", class_=class_, role="img",
        aria_labelledby=f"{identifier}-t {identifier}-d",
    )  # fmt: skip
