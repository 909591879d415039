"""The page: sections of figures and tables, put together from the parts the other files draw.

SECTIONS is the table of them, in the order of the page. A module outside the package adds one with
`SECTIONS.register(Section("mine", draw))`; it stands behind the others, before the settings.
"""

from collections.abc import Callable
from dataclasses import dataclass

from geowidth.errors import UserError, shown
from geowidth.registry import Registry
from geowidth.report import charts, curves, profiles, style, tables, widths
from geowidth.report.charts import element, escape, mark
from geowidth.report.facts import key_facts, method_facts
from geowidth.report.folder import RunFolder
from geowidth.report.numbers import DASH, compact, is_finite, plain, signed, thousands
from geowidth.report.reproduce import command_words, files_list, limits, reproduce, versions
from geowidth.train.evidence import LOSS_UNIT


def tag(name, *content, **attributes):
    """An HTML element around markup."""
    return element(name, "".join(content), **attributes)


def words(name, content, **attributes):
    """An HTML element around plain text."""
    return element(name, escape(content), **attributes)


def figure(identifier, drawing, width, height, title, description, notes=()):
    """A <figure> with one SVG; `notes` are printed under it."""
    caption = tag("figcaption", " ".join(escape(note) for note in notes)) if notes else ""
    return tag("figure", charts.svg(drawing, width, height, title, description, identifier), caption)


def responsive(identifier, draw, title, description, wide, narrow):
    """A figure drawn twice, for wide and for narrow screens, so that its letters keep their size. `draw(width)`."""
    parts = []
    for kind, width in (("wide", wide), ("narrow", narrow)):
        content, height = draw(width)
        parts.append(charts.svg(content, width, height, title, description, f"{identifier}-{kind}", f"chart {kind}"))
    return tag("figure", *parts)


def section(identifier, title, lead, *content):
    """A section with its heading and one line that says how to read it."""
    return tag("section", words("h2", title), words("p", lead, class_="lead"), *content, id=identifier)


def absent(what, run):
    """A note in place of what is not there yet, with the command that makes it."""
    return tag("p", escape(what) + " To make it: ", tag("code", command_words(run.resume_command)), class_="absent")


def legend(run, looks):
    """A switch per arm: its mark, dash and name. Without JavaScript it is a plain key."""
    buttons = []
    for name, look in looks.items():
        if not curves.loss_series(run, name):
            continue
        swatch = element("path", d="M1 7H37", class_=f"mean stroke-arm{look.hue} dash{look.dash}")
        swatch += mark(look.shape, 19.0, 7.0, 3.6, f"fill-arm{look.hue}")
        icon = element("svg", swatch, viewBox="0 0 38 14", class_="chart swatch", aria_hidden="true")
        text = name + (" (baseline)" if name == run.baseline else "")
        buttons.append(
            tag("button", icon, words("span", text), type="button", aria_pressed="true", data_switch=look.index)
        )
    return tag("div", *buttons, class_="legend", role="group", aria_label="Arms shown")


def grid_table(head, rows, class_="", caption=""):
    """A table of plain texts; the first column names the row. Cells carry their heading for narrow screens."""
    cells = [words("th", name, scope="col") for name in head]
    body = []
    for row in rows:
        line = [words("th", row[0], scope="row")]
        line += [words("td", value, data_head=name) for name, value in zip(head[1:], row[1:], strict=True)]
        body.append(tag("tr", *line))
    title = words("caption", caption) if caption else ""
    inside = tag("table", title, tag("thead", tag("tr", *cells)), tag("tbody", *body), class_=class_ or None)
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=caption or head[0])


def looks_of(run):
    """How each arm is drawn: {name: look}."""
    return widths.arm_styles(run.arm_names, run.baseline)


def headline(run, rows):
    """The sentence, the facts under it, and what is missing."""
    title, sentence = "This run is not finished: nothing may be concluded yet.", ""
    if run.comparison:
        title, sentence = tables.headline(rows, run.baseline), tables.remainder(run.comparison, rows)
    facts = [tag("div", words("dt", name), words("dd", value)) for name, value in key_facts(run, rows)]
    parts = [
        words("p", "GeoWidth", class_="brand"),
        words("h1", title),
        words("p", sentence, class_="lead") if sentence else "",
        tag("dl", *facts, class_="facts"),
    ]
    if run.missing:
        items = tag("ul", *(words("li", note) for note in run.missing))
        command = tag("code", command_words(run.resume_command))
        lead = tag("p", words("strong", "Not finished. "), "This goes on where it stopped: ", command)
        parts.append(tag("div", lead, items, class_="absent"))
    return tag("header", *parts)


def work_section(run):
    """The nine profiles, the intrinsic dimension, and every number."""
    lead = (
        "Each panel follows one signal over depth, layer 0 first: how far a layer\u2019s FFN moves the token states. "
        "Rows are statistics, columns geometries; axes start at zero and carry raw numbers."
    )
    if run.work is None or not profiles.layer_count(run.work):
        return section("work", "Where the model works", lead, absent("No work profile has been measured.", run))
    driver, panels, notes = run.driver(), [], []
    geometries = profiles.geometries_of(run.work)
    for statistic in profiles.statistics_of(run.work):
        for geometry in geometries:
            name = f"{profiles.statistic_name(statistic)}, {geometry}"
            drawing = profiles.work_panel(run.work, statistic, geometry, keyed=driver == (statistic, geometry))
            odd = profiles.odd_notes(statistic, profiles.signal(run.work, statistic, geometry))
            notes += [f"{name}: {note}" for note in odd]
            description = profiles.work_words(run.work, statistic, geometry)
            panels.append(figure(f"work-{statistic}-{geometry}", drawing, 352, 172, name, description))
    dimension = responsive(
        "dimension", lambda width: (profiles.dimension_panel(run.work, width, 210.0), 210.0), "Intrinsic dimension",
        "Intrinsic dimension of the states entering each FFN, by estimator and layer.", 728.0, 352.0,
    )  # fmt: skip
    facts = tag("ul", *(words("li", fact) for fact in [*notes, *method_facts(run.work)]), class_="notes")
    grid = tag("div", *panels, class_="nine", **_columns(len(geometries)))
    return section("work", "Where the model works", lead, grid,
                   tag("div", dimension, facts, class_="beside"), work_numbers(run.work))  # fmt: skip


def _columns(count):
    """Attributes of a grid of panels that has another number of columns than three."""
    return {} if count == 3 else {"style": f"--columns: {count}"}


def work_numbers(work):
    """Every number of the panels and the dimensions, folded away."""
    statistics = profiles.statistics_of(work)
    columns = {f"{s} {g}": profiles.signal(work, s, g) for s in statistics for g in profiles.geometries_of(work)}
    rest = {f"{s} raw, no large norms": profiles.without_large_norms(work, s) for s in statistics}
    columns |= {name: values for name, values in rest.items() if values}
    found = work.get("dimension") or {}
    columns |= {words: found[name] for name, words in profiles.ESTIMATORS.items() if found.get(name)}
    head = ["layer", *columns]
    rows = [
        [layer, *(profiles.significant(c[layer]) if layer < len(c) else DASH for c in columns.values())]
        for layer in range(profiles.layer_count(work))
    ]
    return tag(
        "details", words("summary", "All numbers by layer"), grid_table(head, rows, "wide-table", "Work by layer")
    )


def widths_section(run):
    """A step chart per arm, and the table of budgets and widths."""
    looks = looks_of(run)
    lead = (
        "FFN width of every layer under one parameter budget. The dashed line is the uniform width; dotted lines are "
        "floors and caps, and \u25b4 or \u25be marks a layer that stands at one."
    )
    names = [name for name in run.arm_names if widths.arm_widths(run, name)]
    if not names:
        return section("widths", "Which widths follow", lead, absent("No widths have been allocated.", run))
    class_, wide = ("two", 552.0) if len(names) in (1, 2, 4) else ("nine", 352.0)
    highest, panels = widths.highest_width(run), []
    for name in names:
        own, schedule = widths.arm_widths(run, name), run.schedules.get(name)

        def draw(width, name=name, own=own, schedule=schedule):
            return widths.width_panel(name, own, schedule, looks[name], highest, width), 168.0

        title, description = f"Widths of {name}", widths.width_words(name, own, schedule)
        panels.append(responsive(f"widths-{looks[name].index}", draw, title, description, wide, 352.0))
    return section("widths", "Which widths follow", lead, tag("div", *panels, class_=class_), budget_table(run, names),
                   width_table(run, names))  # fmt: skip


def budget_table(run, names):
    """Budget, spent, unspent and range of each arm."""
    head = ["arm", "narrowest", "widest", "sum of widths", "multiple of", "budget", "spent", "left"]
    rows = []
    for name in names:
        own, schedule = widths.arm_widths(run, name), run.schedules.get(name) or {}
        budget = schedule.get("budget") or {}
        value, spent = budget.get("value"), budget.get("spent")
        left = value - spent if is_finite(value) and is_finite(spent) else None
        numbers = [min(own), max(own), sum(own), schedule.get("quantum"), value, spent, left]
        rows.append([name, *map(thousands, numbers)])
    units = sorted({((run.schedules.get(n) or {}).get("budget") or {}).get("unit") or "" for n in names} - {""})
    return grid_table(head, rows, "", f"FFN budget of each arm{', in ' + ', '.join(units) if units else ''}")


def width_table(run, names):
    """Every width, layers as rows."""
    own = {name: widths.arm_widths(run, name) for name in names}
    layers = max(map(len, own.values()))
    rows = [[i, *(thousands(own[n][i]) if i < len(own[n]) else DASH for n in names)] for i in range(layers)]
    return tag(
        "details", words("summary", "All widths by layer"), grid_table(["layer", *names], rows, "", "Widths by layer")
    )


def loss_section(run):
    """Loss curves and the paired difference over training."""
    looks = looks_of(run)
    lead = (
        "Held-out loss while training. Thin lines are single seeds, bold lines their mean. In the second chart the "
        "baseline\u2019s loss of the same seed is taken away: seeds differ more than arms do, and pairing removes that."
    )
    if not any(curves.loss_series(run, name) for name in run.arm_names):
        return section("loss", "How training went", lead, absent("No model has been trained.", run))
    pair = [
        responsive("loss-curves", lambda w: (curves.loss_chart(run, looks, w, 300.0), 300.0), "Validation loss",
                   f"Validation loss in {run.loss_unit} over tokens for {', '.join(run.arm_names)}.", 552.0, 352.0),
        responsive("loss-differences", lambda w: (curves.difference_chart(run, looks, w, 300.0), 300.0),
                   f"Loss minus {run.baseline}'s", "Paired difference of validation loss over tokens.", 552.0, 352.0),
    ]  # fmt: skip
    return section("loss", "How training went", lead, legend(run, looks), tag("div", *pair, class_="two"))


def evidence_section(run):
    """The paired plot, one sentence per arm, and the tables."""
    rows, looks = tables.rows_of(run), looks_of(run)
    lead = (
        "Small marks are single seeds, the diamond is their mean, the bar its t interval. A bar across zero means: no "
        "difference seen at this size. Intervals are not corrected for the number of arms compared."
    )
    if not any(row.losses for row in rows):
        return section("evidence", "Did it help", lead, absent("No losses to compare yet.", run))
    plot = responsive(
        "paired", lambda width: curves.paired_chart(rows, looks, run.baseline, width), "Paired differences of loss",
        " ".join(tables.verdict(row, run.baseline) for row in rows), 620.0, 352.0,
    )  # fmt: skip
    sayings = []
    for row in rows:
        look = looks[row.arm]
        icon = element("svg", mark(look.shape, 7.0, 7.0, 4.4, f"fill-arm{look.hue}"), viewBox="0 0 14 14",
                       class_="chart dotmark", aria_hidden="true")  # fmt: skip
        sayings.append(tag("div", tag("dt", icon, escape(row.arm)), words("dd", tables.verdict(row, run.baseline))))
    pair = tag("div", plot, tag("dl", *sayings, class_="verdicts"), class_="beside")
    return section("evidence", "Did it help", lead, pair,
                   "" if run.comparison else absent("The arms have not been compared.", run),
                   paired_table(rows), seed_table(rows))  # fmt: skip


def paired_table(rows):
    """Every loss with all that is known of its difference and what it cost."""
    confidences = {row.confidence for row in rows if row.confidence}
    share = tables.percent(next(iter(confidences))) if len(confidences) == 1 else "t"
    stated = {tables.seeds_needed(row)[1:] for row in rows if row.power}
    effect, power = next(iter(stated)) if len(stated) == 1 else (None, None)
    need = f"seeds to see {effect:g}" if is_finite(effect) else "seeds needed"
    head = ["arm", "mean loss", "bits per byte", "difference \u00b1 se", f"{share} interval", "sign-flip p", "seeds",
            need, "parameters", "tokens", "FLOPs", "seconds"]  # fmt: skip
    body = []
    for row in rows:
        number, own, _ = tables.seeds_needed(row)
        number += f" for {own:g}" if effect is None and is_finite(own) else ""
        p = f"{row.sign_flip_p:.3g}" if is_finite(row.sign_flip_p) else DASH
        error = f" \u00b1 {plain(row.standard_error, 4)}" if is_finite(row.standard_error) else ""
        difference = "baseline" if row.is_baseline else signed(row.difference, 4) + error
        costs = [thousands(row.parameters), compact(row.tokens), compact(row.flops), plain(row.seconds, 1)]
        loss = [plain(row.mean_loss, 4), plain(row.bits_per_byte, 4), difference, tables.interval_words(row), p]
        body.append([row.arm, *loss, len(row.losses), number, *costs])
    unit = rows[0].unit if rows else LOSS_UNIT
    caption = f"Final validation loss in {unit}, differences paired by seed, cost of one seed"
    caption += f"; seeds needed for {100 * power:g} % power" if is_finite(power) else ""
    return grid_table(head, body, "dense", caption)


def seed_table(rows):
    """Loss of every seed, with its difference from the baseline."""
    seeds = sorted({seed for row in rows for seed in row.losses})
    body = []
    for row in rows:
        cells = []
        for seed in seeds:
            gap = f" ({signed(row.differences[seed], 4)})" if seed in row.differences else ""
            cells.append(plain(row.losses.get(seed), 4) + gap)
        body.append([row.arm, *cells])
    return grid_table(
        ["arm", *(f"seed {seed}" for seed in seeds)], body, "", "Loss of every seed (difference from the baseline)"
    )


def settings_section(run, rows):
    """Reproduction, versions, limits, files and all settings."""
    lead = "Everything that fixes the numbers above, and what they do not say."
    return section("settings", "Settings and limits", lead,
                   tag("div", reproduce(run), limits(run, rows), class_="two"),
                   tag("div", versions(run), files_list(run), class_="two"))  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A part of the page.

    draw: function of the RunFolder (its path, settings, work, schedules, arms and comparison, None or empty where they
    are not there yet; geowidth.report.tables.rows_of gives the paired differences) that returns HTML, "" for nothing.
    """

    name: str
    draw: Callable[[RunFolder], str]

    def html(self, run: RunFolder) -> str:
        """What it draws, or a UserError that names it for anything but text."""
        found = self.draw(run)
        if not isinstance(found, str):
            raise UserError(f"report section {self.name!r} gave {shown(found)}; needed: HTML as text")
        return found


SECTIONS = Registry(
    "report section",
    Section,
    (
        Section("work", work_section),
        Section("widths", widths_section),
        Section("loss", loss_section),
        Section("evidence", evidence_section),
    ),
)


def page(run):
    """The whole page as text."""
    drawn = [one.html(run) for one in SECTIONS.values()]
    rows = tables.rows_of(run)
    parts = [headline(run, rows), *drawn, settings_section(run, rows)]
    head = [
        '<meta charset="utf-8">', '<meta name="viewport" content="width=device-width,initial-scale=1">',
        words("title", f"GeoWidth report: {run.path.name or run.path}"), tag("style", style.page_css()),
    ]  # fmt: skip
    body = [tag("main", *parts), tag("div", id="tip", role="status", hidden="hidden"), tag("script", style.script())]
    return f"<!doctype html>\n{tag('html', tag('head', *head), chr(10), tag('body', *body), lang='en')}\n"
