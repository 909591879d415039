"""The picture of pruning: loss over blocks removed, a panel a model, drawn with the parts of the report's figures."""

import math

from geowidth.report import charts, style
from geowidth.report.charts import Frame, Scale, curve, element, label, mark, rule

LOOKS = {"random": (0, "circle"), "ledger": (1, "square"), "similarity": (2, "up"), "taylor": (3, "diamond")}
LOOKS |= {"magnitude": (4, "down"), "best of all sets": (5, "plus")}  # rule: (hue, mark)
WIDE, HIGH, GAP, MARGIN, TOP = 330.0, 260.0, 24.0, 20.0, 62.0
TITLES = {"mini": "Small model: 6 blocks, 5 trainings", "smollm2-stdlib": "SmolLM2-135M: 30 blocks, Python code"}
TITLES |= {"smollm2-bible": "SmolLM2-135M: 30 blocks, the Bible"}


def picture(models):
    """The panels of all models as one stand-alone SVG document, light or dark as its reader prefers."""
    width, height = 2 * MARGIN + len(models) * (WIDE + GAP) - GAP, TOP + HIGH + MARGIN
    parts = [
        element("rect", width=width, height=height, class_="paper"),
        label(MARGIN, 28.0, "Loss over blocks removed", "head"),
        label(MARGIN, 45.0, "thin: smallest and largest of all trainings and orders of rule random", "soft"),
    ]
    for column, model in enumerate(models):
        place = f"translate({charts.pixel(MARGIN + column * (WIDE + GAP))} {charts.pixel(TOP)})"
        parts.append(element("g", panel(model), transform=place))
    words = " ".join(f"{TITLES[model.name]}: {said(model)}" for model in models)
    content = element("style", charts.escape(style.chart_css())) + "".join(parts)
    drawing = charts.svg(content, width, height, "Loss over blocks removed", words, "pruning")
    size = f'xmlns="http://www.w3.org/2000/svg" width="{charts.pixel(width)}" height="{charts.pixel(height)}"'
    return drawing.replace("<svg ", f"<svg {size} ", 1) + "\n"


def series(model):
    """{rule: [loss above the whole model's without 0, 1, ... blocks]}, and of the best sets where they are known."""
    steps = range(1, model.blocks + 1)
    found = {rule: [0.0, *(float(model.lost(rule, k).mean()) for k in steps)] for rule in model.rules}
    if model.best(1) is not None:
        found["best of all sets"] = [0.0, *(float(model.best(k).mean()) for k in steps)]
    return found


def said(model):
    """The last values in words, for those who do not see the picture."""
    return ", ".join(f"{rule} {values[-1]:.2f}" for rule, values in series(model).items()) + " nats at the right end."


def panel(model):
    """Inside of one panel."""
    lines = series(model)
    frame = Frame(WIDE, HIGH, right=112.0, top=42.0)
    band = [(0.0, 0.0), *(model.extremes("random", k) for k in range(1, model.blocks + 1))]
    x = Scale(0.0, float(model.blocks), frame.left, frame.x_end)
    values = [v for own in lines.values() for v in own] + [float(v) for pair in band for v in pair]
    y, ticks, words = charts.value_scale(values, frame.y_end, frame.top + 6)
    parts = [rule(0.0, 0.75, WIDE, 0.75, "top"), label(0.0, 15.0, TITLES[model.name], "name")]
    parts += [label(0.0, 30.0, "nats a token above the whole model", "soft"), charts.grid(frame, y, ticks, words)]
    parts += [label(x(k), frame.y_end + 15, k, "tick", "middle") for k in range(0, model.blocks + 1, _step(model))]
    parts.append(label(frame.left - 6, frame.y_end + 15, "gone", "tick", "end"))
    parts += [curve([(x(k), y(pair[side])) for k, pair in enumerate(band)], "seed stroke-arm0") for side in (0, 1)]
    for name, own in lines.items():
        hue, shape = LOOKS[name]
        points = [(x(k), y(value)) for k, value in enumerate(own)]
        parts.append(curve(points, f"mean stroke-arm{hue} dash{hue}"))
        parts += [mark(shape, *point, 3.0, f"fill-arm{hue}") for point in points[1:]]
    return "".join(parts) + _names(frame, {name: y(own[-1]) for name, own in lines.items()})


def _step(model):
    return math.ceil((model.blocks + 1) / 11)


def _names(frame, ends):
    """The rules at the ends of their lines, moved apart where they would overlap."""
    places = charts.spread(list(ends.values()), 14.0, frame.top + 4, frame.y_end)
    parts = []
    for (name, end), place in zip(ends.items(), places, strict=True):
        hue, shape = LOOKS[name]
        parts.append(rule(frame.x_end + 2, end, frame.x_end + 10, place, "leader"))
        parts.append(mark(shape, frame.x_end + 15, place, 3.4, f"fill-arm{hue}"))
        parts.append(label(frame.x_end + 22, place + 3.9, name, f"fill-arm{hue}"))
    return "".join(parts)
