"""The widths of each arm over depth: one step chart per arm on a common scale, and what its schedule says."""

from dataclasses import dataclass

from geowidth.report import charts, style
from geowidth.report.charts import Frame, bands, curve, label, mark, rule
from geowidth.report.folder import lookup
from geowidth.report.numbers import DASH, is_finite, is_number, layer_list, shorten, thousands

LONGEST_NAME, LONGEST_HEAD = 43, 50  # letters of a panel's first line: a name alone; a name and what its arm spends


@dataclass(frozen=True)
class ArmStyle:
    """How an arm looks everywhere: hue, dash pattern and mark, so that colour is never the only sign."""

    index: int
    hue: int
    dash: int
    shape: str


def arm_styles(names, baseline):
    """Arm name -> ArmStyle. The baseline is grey and solid; the others take hues, dashes and marks in turn."""
    styles, place = {}, 0
    for index, name in enumerate(names):
        if name == baseline:
            styles[name] = ArmStyle(index, 0, 1, "circle")
            continue
        place += 1
        hue = 1 + (place - 1) % (style.HUES - 1)
        dash = 1 + (place - 1 + (place - 1) // 5) % 5
        styles[name] = ArmStyle(index, hue, dash, charts.SHAPES[place % len(charts.SHAPES)])
    return styles


def arm_widths(run, name):
    """Widths of an arm: its schedule's, else the comparison's, else the trained model's; [] when none says."""
    sources = [run.schedules.get(name)]
    sources += [a for a in (run.comparison or {}).get("arms") or [] if a.get("arm") == name]
    for training in run.arms.get(name, {}).values():
        sources += [training.result, training.config]
    for source in sources:
        widths = lookup(source, "widths")
        if isinstance(widths, list) and widths and all(map(is_number, widths)):
            return widths
    return []


def bound(schedule, name, layer):
    """The floor or cap (`name`) of one layer in a schedule's settings, given as one number or a list; or None."""
    value = ((schedule or {}).get("settings") or {}).get(name)
    if isinstance(value, list):
        value = value[layer] if layer < len(value) else None
    return value if is_finite(value) else None


def at_bounds(schedule, widths):
    """Layers whose next narrower width would lie below the floor, and whose next wider one above the cap."""
    step = (schedule or {}).get("quantum") or 1
    floors = [i for i, w in enumerate(widths) if (f := bound(schedule, "floor", i)) is not None and w - step < f]
    caps = [i for i, w in enumerate(widths) if (c := bound(schedule, "cap", i)) is not None and w + step > c]
    return floors, caps


def _steps(x, y, widths):
    points = []
    for layer, width in enumerate(widths):
        points += [(x(layer - 0.5), y(width)), (x(layer + 0.5), y(width))]
    return points


def spent_words(schedule):
    """What a schedule spends of its budget, in words; "" where it does not say."""
    budget = (schedule or {}).get("budget") or {}
    if not (is_finite(budget.get("spent")) and is_finite(budget.get("value"))):
        return ""
    return f"{thousands(budget['spent'])} of {thousands(budget['value'])} {budget.get('unit', '')} spent"


def width_panel(name, widths, schedule, look, highest, width=352.0, height=168.0):
    """Inside of one arm's panel. `highest`: the largest width or cap of any arm, so that all panels share one scale."""
    frame = Frame(width, height, top=42.0)
    head = rule(0.0, 0.75, width, 0.75, "top") + mark(look.shape, 5.0, 11.2, 4.4, f"fill-arm{look.hue}")
    head += label(15.0, 15.0, shorten(name, LONGEST_NAME), f"name fill-arm{look.hue}")
    unit, share = "FFN width", spent_words(schedule)
    if len(name) + len(share) <= LONGEST_HEAD:
        head += label(width, 15.0, share, "soft", "end") if share else ""
    elif share:  # a long name has its line to itself
        unit = f"{unit}; {share}"
    head += label(0.0, 30.0, unit, "soft")
    if not widths:
        return head + label(width / 2, height / 2, "no widths yet", "soft", "middle")
    span = [thousands(w) for w in dict.fromkeys((min(widths), max(widths)))]
    head += label(width, 30.0, DASH.join(span), "soft", "end")
    x = frame.layers(len(widths))
    y, ticks, words = charts.value_scale([0, highest], frame.y_end, frame.top + 4)
    body = charts.grid(frame, y, ticks, words) + _bounds(frame, x, y, schedule, len(widths))
    steps = _steps(x, y, widths)
    body += curve([(steps[0][0], y(0)), *steps, (steps[-1][0], y(0))], f"steps-area fill-arm{look.hue}")
    body += curve(steps, f"steps stroke-arm{look.hue}")
    base = (schedule or {}).get("base_width")
    if is_finite(base):
        body += rule(frame.left, y(base), frame.x_end, y(base), "base")
    floors, caps = at_bounds(schedule, widths)
    size = 3.2 if len(widths) <= 48 else 1.8
    body += "".join(mark("up", x(i), y(widths[i]) + 6, size, f"fill-arm{look.hue}") for i in floors)
    body += "".join(mark("down", x(i), y(widths[i]) - 6, size, f"fill-arm{look.hue}") for i in caps)
    tips = [f"layer {i}: width {thousands(w)}" + _bound_words(i, floors, caps) for i, w in enumerate(widths)]
    return head + body + charts.layer_axis(frame, len(widths)) + bands(frame, tips)


def _bounds(frame, x, y, schedule, count):
    """Dotted lines at the floors and caps that lie within the scale."""
    parts = []
    for name in ("floor", "cap"):
        limits = [bound(schedule, name, layer) for layer in range(count)]
        points: list[tuple[float, float] | None] = []
        for layer, limit in enumerate(limits):
            inside = limit is not None and 0.02 * y.high < limit <= y.high
            points += [(x(layer - 0.5), y(limit)), (x(layer + 0.5), y(limit))] if inside else [None]
        parts.append(curve(points, "bound"))
    return "".join(parts)


def _bound_words(layer, floors, caps):
    return ", at its floor" if layer in floors else ", at its cap" if layer in caps else ""


def highest_width(run):
    """The top of the common scale: the largest width, or cap that some layer reaches."""
    return max([w for name in run.arm_names for w in arm_widths(run, name) if is_finite(w)], default=1) or 1


def width_words(name, widths, schedule):
    """The panel in words."""
    if not widths:
        return f"The widths of {name} are not known yet."
    floors, caps = at_bounds(schedule, widths)
    words = f"FFN widths of {name} by layer: {', '.join(map(str, widths))}."
    words += f" At the floor: layers {layer_list(floors)}." if floors else ""
    return words + (f" At the cap: layers {layer_list(caps)}." if caps else "")
