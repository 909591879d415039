"""The drawing of the study: every arm against uniform at the main shares, and the few arms over all shares."""

from benchmarks.experiments.slicing.design import ARMS, FEWER, MAIN, UNIFORM
from benchmarks.experiments.slicing.table import found
from geowidth.report import charts, style
from geowidth.report.charts import Frame, Scale, curve, element, escape, label, mark, rule
from geowidth.report.numbers import signed, tick_labels
from geowidth.train.evidence import critical_t

ROW, LEFT = 19.0, 178.0
LOOKS = {"cosine": (2, "square"), "sensitivity": (5, "plus"), "topology/spherical": (1, "circle")}
LOOKS |= {"shift/spherical": (3, "up"), "sorted topology/spherical": (4, "diamond")}


def look(arm):
    """(hue, shape) of an arm; those without one of their own are grey."""
    return LOOKS.get(arm, (0, "circle"))


def interval(study, kept, arm):
    """(mean, low, high): the 95 % t interval over clusters, the mean thrice for one of them, None for none."""
    summary = found(study, kept, arm)
    if summary is None:
        return None
    error = summary.over_clusters
    reach = 0.0 if error is None else critical_t(summary.clusters - 1, 0.95) * error
    return summary.mean, summary.mean - reach, summary.mean + reach


def ordered(study):
    """The arms of the forest, lowest mean difference over the main shares first."""
    means = {}
    for arm in ARMS:
        known = [found(study, kept, arm) for kept in MAIN]
        if arm != UNIFORM.name and all(known):
            means[arm] = sum(one.mean for one in known)
    return sorted(means, key=means.get)


def _value_axis(frame, x, span):
    ticks, step = charts.nice_ticks(-span, span, 6)
    parts = []
    for tick, words in zip(ticks, tick_labels(ticks, step), strict=True):
        parts.append(rule(x(tick), frame.top - 6, x(tick), frame.y_end, "zero" if abs(tick) < step / 2 else "grid"))
        parts.append(label(x(tick), frame.y_end + 15, ("+" if tick > step / 2 else "") + words, "tick", "middle"))
    return "".join(parts)


def forest(study, kept, arms, width, left):
    """A panel: the intervals of all arms at one share. Arms beyond the axis get an arrow and their number."""
    frame = Frame(width, 52.0 + ROW * len(arms) + 24.0, left=left, right=12.0, top=52.0, bottom=24.0)
    known = {arm: interval(study, kept, arm) for arm in arms}
    means = sorted(abs(v[0]) for v in known.values() if v)
    span = 1.6 * means[int(0.8 * (len(means) - 1))] if means else 1.0
    x = Scale(-span, span, frame.left, frame.x_end)
    parts = [label(left, 15.0, f"{kept:.0%} of the FFN neurons kept", "name")]
    parts.append(label(left, 31.0, "loss minus uniform\u2019s, nats a token; 95 % intervals", "soft"))
    parts.append(_value_axis(frame, x, span))
    for i, arm in enumerate(arms):
        y = frame.top + ROW * (i + 0.5)
        if left > 20:
            parts.append(label(left - 8, y + 4, arm, None, "end"))
        if known[arm]:
            parts.append(_row(arm, known[arm], x, y))
    return "".join(parts), frame.height


def _row(arm, values, x, y):
    mean, low, high = values
    hue, shape = look(arm)
    tip = f"{arm}: {signed(mean, 3)} ({signed(low, 3)} to {signed(high, 3)})"
    if not x.low < mean < x.high:
        side = 1 if mean > 0 else -1
        end = x(x.high if side > 0 else x.low)
        words = label(end - 14 * side, y + 4, signed(mean, 2), "soft", "end" if side > 0 else "start")
        points = f"{charts.pixel(end - 10 * side)},{charts.pixel(y - 4)} {charts.pixel(end)},{charts.pixel(y)} "
        points += f"{charts.pixel(end - 10 * side)},{charts.pixel(y + 4)}"
        return words + element("polygon", points=points, class_=f"fill-arm{hue}", data_tip=tip)
    low, high = (min(max(v, x.low), x.high) for v in (low, high))
    return rule(x(low), y, x(high), y, f"interval stroke-arm{hue}") + mark(
        shape, x(mean), y, 4.4, f"centre fill-arm{hue}", data_tip=tip
    )


def over_shares(study, width, height=240.0):
    """A panel: the few arms over the share that is removed."""
    frame = Frame(width, height, left=LEFT, right=150.0, top=44.0, bottom=26.0)
    shares = study.shares
    lines = {arm: [(1 - k, found(study, k, arm)) for k in shares] for arm in FEWER if arm != UNIFORM.name}
    lines = {arm: [(r, s) for r, s in points if s] for arm, points in lines.items()}
    values = [s.mean for points in lines.values() for _, s in points]
    y, ticks, words = charts.value_scale([*values, 0.0], frame.y_end, frame.top + 4, zero=False)
    x = Scale(0.05, 0.65, frame.left, frame.x_end)
    parts = [
        label(LEFT, 15.0, "Over the share removed", "name"),
        label(LEFT, 31.0, "loss minus uniform\u2019s, nats a token", "soft"),
    ]
    parts.append(charts.grid(frame, y, ticks, words))
    parts += [label(x(1 - k), frame.y_end + 15, f"{1 - k:.0%}", "tick", "middle") for k in shares]
    ends = {}
    for i, (arm, points) in enumerate(lines.items(), 1):
        hue, shape = look(arm)
        parts.append(curve([(x(r), y(s.mean)) for r, s in points], f"mean stroke-arm{hue} dash{i}"))
        parts += [mark(shape, x(r), y(s.mean), 3.6, f"fill-arm{hue}") for r, s in points]
        if points:
            ends[arm] = (x(points[-1][0]), y(points[-1][1].mean))
    names = sorted(ends, key=lambda arm: ends[arm][1])
    places = charts.spread([ends[arm][1] for arm in names], 14.0, frame.top, frame.y_end)
    for arm, place in zip(names, places, strict=True):
        parts.append(rule(ends[arm][0] + 4, ends[arm][1], frame.x_end + 4, place, "leader"))
        parts.append(label(frame.x_end + 8, place + 4, arm, f"fill-arm{look(arm)[0]}"))
    return "".join(parts), height


def panels(study):
    """(markup, width, height) of all panels side by side and one above the other."""
    arms, wide = ordered(study), 330.0
    first, height = forest(study, MAIN[0], arms, LEFT + wide, LEFT)
    second, _ = forest(study, MAIN[1], arms, wide, 14.0)
    third, lower = over_shares(study, LEFT + 2 * wide)
    place = "translate({} {})".format
    parts = [
        element("g", first, transform=place(0, 44)),
        element("g", second, transform=place(charts.pixel(LEFT + wide), 44)),
    ]
    parts.append(element("g", third, transform=place(0, charts.pixel(height + 58))))
    return "".join(parts), LEFT + 2 * wide + 12, height + lower + 66


def describe(study):
    """The picture in words."""
    rows = []
    for kept in MAIN:
        known = [(arm, interval(study, kept, arm)) for arm in ordered(study)]
        rows += [
            f"{kept:.0%} kept, {arm}: {signed(v[0], 3)} ({signed(v[1], 3)} to {signed(v[2], 3)})."
            for arm, v in known
            if v
        ]
    return " ".join(rows)


TITLE = "Slicing SmolLM2-135M: which layers keep how many neurons"


def svg(study):
    """The stand-alone SVG document."""
    content, width, height = panels(study)
    head = element("style", escape(style.chart_css())) + element("rect", width=width, height=height, class_="paper")
    head += label(14.0, 26.0, TITLE, "head")
    drawing = charts.svg(head + content, width, height, TITLE, describe(study), "slicing")
    size = f'xmlns="http://www.w3.org/2000/svg" width="{charts.pixel(width)}" height="{charts.pixel(height)}"'
    return drawing.replace("<svg ", f"<svg {size} ", 1) + "\n"
