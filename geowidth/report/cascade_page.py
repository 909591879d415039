"""The page of a cascade study: the question, a line an arm, and the numbers behind them by depth, pair and seed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from geowidth.progress import duration
from geowidth.report import cascade_charts, cascade_tables, curves, style
from geowidth.report.charts import element, escape, mark
from geowidth.report.numbers import compact, layer_list, plain, thousands
from geowidth.report.page import figure, responsive, section, tag, words
from geowidth.report.reproduce import command_words
from geowidth.report.widths import arm_styles

PAIRED_WORDS = ("Share of the late blocks, paired by seed", "\u2190 less", "more \u2192")


@dataclass(frozen=True)
class PairedRow:
    """One arm of the paired plot, in points of 100; see geowidth.report.curves.paired_chart."""

    arm: str
    differences: dict[int, float]
    difference: float | None
    interval: tuple[float, float] | None
    unit: str = "points of 100"
    is_baseline: bool = False


def looks_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """How each arm is drawn: {name: look}; the first plain one is grey."""
    names = [arm["arm"] for arm in record["arms"]]
    return arm_styles(names, next((arm["arm"] for arm in record["arms"] if arm["against"] is None), names[0]))


def paired_rows(record: Mapping[str, Any]) -> list[PairedRow]:
    """The compared arms and their differences in the headline measure."""
    rows = []
    for arm in record["arms"]:
        if arm["against"] is None:
            continue
        found = arm["differences"].get("late_half") or {}
        interval, mean = found.get("interval"), found.get("mean")
        by_seed = {int(seed): 100 * value for seed, value in found.get("by_seed", {}).items()}
        ends = None if interval is None else (100 * interval[0], 100 * interval[1])
        rows.append(PairedRow(arm["arm"], by_seed, None if mean is None else 100 * mean, ends))
    return rows


def study_page(record: Mapping[str, Any], name: str, command: str) -> str:
    """The whole page as text. name: of the folder. command: the one that makes what is missing."""
    looks = looks_of(record)
    parts = [
        header(record, looks, command),
        late_section(record, looks),
        importance_section(record, looks),
        shares_section(record, looks),
        pairs_section(record, looks),
        settings_section(record, command),
    ]
    head = [
        '<meta charset="utf-8">', '<meta name="viewport" content="width=device-width,initial-scale=1">',
        words("title", f"GeoWidth cascade study: {name}"), tag("style", style.page_css()),
    ]  # fmt: skip
    body = [tag("main", *parts), tag("div", id="tip", role="status", hidden="hidden"), tag("script", style.script())]
    return f"<!doctype html>\n{tag('html', tag('head', *head), chr(10), tag('body', *body), lang='en')}\n"


def header(record, looks, command):
    """The question, the answer, and one plain line for each arm."""
    compared = [arm["arm"] for arm in record["arms"] if arm["against"] is not None]
    pairs = zip(compared, record["sentences"], strict=True)
    says = [tag("li", *_line(name, looks[name], line)) for name, line in pairs]
    parts = [
        words("p", "GeoWidth cascade study", class_="brand"),
        words("h1", record["question"]),
        words("p", record["headline"], class_="answer"),
        tag("ul", *says, class_="says"),
        *(words("p", unbroken(line), class_="lead") for line in record["plain"]),
        words("p", record["definition"], class_="lead"),
        tag("dl", *(tag("div", words("dt", a), words("dd", b)) for a, b in facts(record)), class_="facts"),
    ]
    if record["missing"]:
        items = tag("ul", *(words("li", note) for note in record["missing"]))
        lead = tag("p", words("strong", "Not finished. "), "This goes on where it stopped: ", code(command))
        parts.append(tag("div", lead, items, class_="absent"))
    return tag("header", *parts)


def _line(name, look, line):
    """A line with the mark of its arm before it and the arm's name in bold."""
    icon = element("svg", mark(look.shape, 7.0, 7.0, 4.4, f"fill-arm{look.hue}"), viewBox="0 0 14 14",
                   class_="chart dotmark", aria_hidden="true")  # fmt: skip
    return icon, words("strong", name), escape(unbroken(line.removeprefix(name)))


def unbroken(text: str) -> str:
    """`text` whose numbers keep their percent signs when lines break."""
    return re.sub(r"(?<=\d) (?=%)", "\u00a0", text)


def code(command):
    """A command as markup."""
    return tag("code", command_words(command))


def facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, text) pairs for the head of the page."""
    settings, model = record["settings"], record["settings"]["model"]
    training, text, corpus = settings["training"], record.get("text") or {}, record.get("corpus") or {}
    seconds = sum(cell["seconds"] for arm in record["arms"] for cell in arm["cells"].values())
    tokens = training["steps"] * training["batch"] * model["context"]
    parameters = sorted({arm["parameters"] for arm in record["arms"] if arm["parameters"]})
    sizes = " to ".join(map(thousands, dict.fromkeys((parameters[0], parameters[-1])))) if parameters else ""
    found = [
        ("preset", settings["preset"]),
        ("model", f"{record['layers']} layers, d {model['dimension']}, {model['heads']} heads"),
        ("parameters", sizes),
        ("corpus", str(corpus.get("source", settings["corpus"]))),
        ("seeds", layer_list(settings["seeds"])),
        ("tokens per model", thousands(tokens)),
        ("judged on", f"{text['windows']} windows of {text['context']} tokens, {text['split']} split" if text else ""),
        ("training time", f"{duration(seconds)}, summed over models" if seconds else ""),
    ]
    return [(name, value) for name, value in found if value]


def late_section(record, looks):
    """The headline measure: paired differences and their tables."""
    lead = (
        "How much of all importance lies in the last half of the blocks, minus the same seed's plain training by the "
        "same optimiser. Small marks are single seeds, the diamond is their mean, the bar its t interval."
    )
    rows = paired_rows(record)
    plot = ""
    if rows:
        plot = responsive(
            "late", lambda width: curves.paired_chart(rows, looks, "the plain arm", width, words=PAIRED_WORDS),
            "Paired differences of the late blocks' share", " ".join(record["sentences"]), 728.0, 352.0,
        )  # fmt: skip
    limits = tag("ul", *(words("li", note) for note in record["notes"]), class_="notes")
    return section("late", "Do late blocks regain importance", lead, tag("div", plot, limits, class_="beside"),
                   cascade_tables.late_table(record), cascade_tables.measures_table(record),
                   cascade_tables.by_seed(record))  # fmt: skip


def _panels(identifier, panels):
    """Panels of (name, title, description, drawing), three beside each other."""
    drawn = [
        figure(f"{identifier}-{place}", drawing, 352, height, title, description)
        for place, (title, description, drawing, height) in enumerate(panels)
    ]
    return tag("div", *drawn, class_="nine")


def importance_section(record, looks):
    """Importance by depth, a panel an arm, beside the plain arm's."""
    lead = (
        "What the loss on held-out text grows by without each block, in nats per token. Thin lines are single seeds, "
        "bold ones their mean, dashed the plain arm of the same optimiser. All panels share one axis."
    )
    by_name = {arm["arm"]: arm for arm in record["arms"]}
    rows = [cell["importance"] for arm in record["arms"] for cell in arm["cells"].values()]
    axis = cascade_charts.axis_values(rows)
    panels = []
    for arm in record["arms"]:
        mean = arm["means"].get("importance") or []
        other = by_name.get(arm["against"], {}).get("means", {}).get("importance")
        dashed = (arm["against"], other) if other else None
        seeds = {seed: cell["importance"] for seed, cell in arm["cells"].items()}
        drawing = cascade_charts.depth_panel(
            arm["arm"], looks[arm["arm"]], seeds, mean, dashed, axis, "nats per token", 3
        )
        panels.append((f"Importance by depth, {arm['arm']}", _in_words(mean, 3), drawing, cascade_charts.HEIGHT))
    return section("importance", "Which blocks matter", lead, _panels("importance", panels),
                   cascade_tables.by_block(record, "importance", "Importance by block, nats per token, mean \u00b1 "
                                           "standard deviation over seeds", 4))  # fmt: skip


def shares_section(record, looks):
    """Gradient shares by depth beside the predicted fan-in."""
    lead = (
        "Each block's share of the gradient norms, summed over all steps before anything scales or clips them. Dashed: "
        "the number of gradient paths that the formula counts for the arm, as a share of all."
    )
    rows = [cell["shares"] for arm in record["arms"] for cell in arm["cells"].values()]
    predicted = {arm["arm"]: _as_shares(arm["fan_in"]) for arm in record["arms"]}
    axis = [0.0, *(value for row in [*rows, *predicted.values()] for value in row)]
    panels = []
    for arm in record["arms"]:
        mean, dashed = arm["means"].get("shares") or [], predicted[arm["arm"]]
        seeds = {seed: cell["shares"] for seed, cell in arm["cells"].items()}
        drawing = cascade_charts.depth_panel(
            arm["arm"], looks[arm["arm"]], seeds, mean, ("fan-in", dashed), axis,
            "share of the gradient norms", 3,
        )  # fmt: skip
        description = f"{_in_words(mean, 3)} Fan-in: {arm['fan_in_words']}."
        panels.append((f"Gradient shares by depth, {arm['arm']}", description, drawing, cascade_charts.HEIGHT))
    return section("shares", "Which blocks get the gradient", lead, _panels("shares", panels),
                   cascade_tables.fan_in_table(record),
                   cascade_tables.by_block(record, "shares", "Gradient shares by block, mean \u00b1 standard deviation "
                                           "over seeds", 4))  # fmt: skip


def _as_shares(paths):
    return [value / sum(paths) for value in paths]


def pairs_section(record, looks):
    """Importance against gradient share, a point a block."""
    lead = (
        "Do blocks that got more gradient matter more? Small marks are single seeds, large ones their mean, with the "
        "number of the block. Correlations are those of the means over blocks."
    )
    cells = [cell for arm in record["arms"] for cell in arm["cells"].values()]
    axes = [s for cell in cells for s in cell["shares"]], cascade_charts.axis_values([c["importance"] for c in cells])
    panels = []
    for arm in record["arms"]:
        points = [(cell["shares"], cell["importance"]) for cell in arm["cells"].values()]
        means = arm["means"].get("shares") or [], arm["means"].get("importance") or []
        both = arm["correlations"].get("shares_importance")
        said = "" if both is None else f"Spearman {plain(both['spearman']['value'], 2)}"
        drawing = cascade_charts.pair_panel(arm["arm"], looks[arm["arm"]], points, means, axes, said)
        title = f"Importance against gradient share, {arm['arm']}"
        panels.append((title, said or "Not trained yet.", drawing, cascade_charts.HEIGHT + 20))
    return section("pairs", "Gradient and importance", lead, _panels("pairs", panels),
                   cascade_tables.correlation_table(record))  # fmt: skip


def _in_words(values: Sequence[float], decimals: int) -> str:
    """A row of numbers for screen readers."""
    return f"By block: {', '.join(plain(value, decimals) for value in values)}." if values else "Not trained yet."


def settings_section(record, command):
    """Arms, commands, files and versions."""
    lead = "Everything that fixes the numbers above."
    lines = tag("pre", tag("code", command_words(command)))
    again = tag("div", words("h3", "Make it again"), lines,
                words("p", "The same seed and machine give the same bits; seconds will differ."))  # fmt: skip
    pairs = "".join(tag("div", words("dt", n), words("dd", v)) for n, v in record["environment"].items())
    versions = tag("div", words("h3", "Versions"), tag("dl", pairs, class_="facts small"))
    listed = [tag("li", tag("code", escape(name)), escape(f" {text}")) for name, text in cascade_tables.FILES.items()]
    beside = tag("div", words("h3", "Files beside this page"), tag("ul", *listed))
    sizes = [f"FLOPs of one model: {compact(arm['flops'])} ({arm['arm']})" for arm in record["arms"] if arm["flops"]]
    costs = tag("div", words("h3", "What the arms compute"), tag("ul", *(words("li", size) for size in sizes)))
    return section("settings", "Settings", lead, cascade_tables.arms_table(record),
                   tag("div", again, versions, class_="two"), tag("div", beside, costs, class_="two"))  # fmt: skip
