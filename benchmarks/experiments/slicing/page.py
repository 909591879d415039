"""The study on one page, in the report's dress: what was asked, what may be said, the picture, every table."""

import re

from benchmarks.experiments.slicing import picture, table
from benchmarks.experiments.slicing.analysis import families, verdicts
from benchmarks.experiments.slicing.design import CONTEXT
from geowidth.report import charts, style
from geowidth.report.page import grid_table, section, tag, words

ASKED = (
    "SmolLM2-135M loses FFN neurons. Which ones go within a layer is the same for all arms but two; how many each "
    "layer keeps is what differs. Every arm leaves as many parameters as uniform widths do. Loss is judged on windows "
    "that no measurement saw, the same for all arms."
)


def html(study):
    """The whole page as text."""
    found = families(study)
    clusters = len(study.ground)
    facts = f"{len(study.cells)} sliced models, {clusters} draws of text, windows of {CONTEXT} tokens."
    content, width, height = picture.panels(study)
    drawing = charts.svg(content, width, height, picture.TITLE, picture.describe(study), "slicing")
    head = [
        '<meta charset="utf-8">', '<meta name="viewport" content="width=device-width,initial-scale=1">',
        words("title", picture.TITLE), tag("style", style.page_css()),
    ]  # fmt: skip
    leads = (words("p", text, class_="lead") for text in (ASKED, facts))
    top = tag("header", words("p", "GeoWidth", class_="brand"), words("h1", picture.TITLE), *leads)
    parts = [
        section(
            "said",
            "What may be said",
            table.NOTE,
            tag("ul", *(words("li", line) for line in verdicts(found)), class_="notes"),
        ),
        section(
            "picture",
            "Against uniform widths",
            "Bars are 95 % intervals of one comparison alone.",
            tag("figure", drawing),
        ),
        *(section(name, title, lead, *tables(make(study), title)) for name, title, lead, make in SECTIONS),
    ]
    body = [
        tag("main", top, *parts),
        tag("div", id="tip", role="status", hidden="hidden"),
        tag("script", style.script()),
    ]
    return f"<!doctype html>\n{tag('html', tag('head', *head), chr(10), tag('body', *body), lang='en')}\n"


SECTIONS = (
    ("arms", "All arms", "Both texts together; p after Holm's correction.", table.arms_table),
    ("order", "Order or multiset", "The same widths in another order tell what the order is worth.", table.order_table),
    ("shares", "Every share", "The arms of the question from 10 to 60 % removed.", table.shares_table),
    ("texts", "Each text alone", "Standard error over draws, in brackets over windows.", table.texts_table),
    ("signals", "Signals and measured sensitivity", "Rank correlation over layers.", table.correlation_table),
    ("losses", "Losses", "In nats a token.", table.losses_table),
    (
        "checks",
        "What the study saves",
        "A few cells as `geowidth slice` makes them, and in float32.",
        table.checks_table,
    ),
)


def tables(text, caption):
    """The Markdown of one table, and lines of text under it, as HTML."""
    lines = text.strip().splitlines()
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    below = [line for line in lines if line and not line.startswith("|")]
    shown = [grid_table(rows[0], rows[2:], "dense", caption)] if rows else []
    return [*shown, *(words("p", re.sub(r"\s+", " ", line)) for line in below)]
