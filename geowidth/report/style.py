"""The palettes, light and dark, and the style sheets made from them.

Arms wear Okabe and Ito's colour-blind-safe hues, darkened or lightened until text in them is legible on the paper; each
arm also has a mark and a dash pattern of its own, and its name stands at its line. The baseline is grey.
"""

import re
from importlib.resources import files

LIGHT = {
    "paper": "#ffffff", "panel": "#f6f7f8", "ink": "#16191d", "muted": "#59616a", "hair": "#e4e7ea", "edge": "#b9c0c7",
    "accent": "#0a63a8", "warn": "#8a5a00", "warn-paper": "#fdf6e6",
    "arm0": "#59616a", "arm1": "#0072b2", "arm2": "#c04f00", "arm3": "#00785a", "arm4": "#a8417e", "arm5": "#7a6200",
}  # fmt: skip
DARK = {
    "paper": "#121518", "panel": "#1a1e22", "ink": "#e7eaed", "muted": "#9ca5ae", "hair": "#2a3036", "edge": "#56606a",
    "accent": "#62b4f2", "warn": "#e6b856", "warn-paper": "#262013",
    "arm0": "#a3acb5", "arm1": "#56b4e9", "arm2": "#f28f52", "arm3": "#42c79c", "arm4": "#e596c4", "arm5": "#d8c148",
}  # fmt: skip
HUES = 6  # arm0 (the baseline's) to arm5


def _read(name):
    return files("geowidth.report").joinpath(name).read_text(encoding="utf-8")


def _squeeze(css):
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    return re.sub(r"\s*([{};:,>])\s*", r"\1", re.sub(r"\s+", " ", css)).strip()


def _variables(palette):
    return "".join(f"--{name}:{colour};" for name, colour in palette.items())


def page_css():
    """The style sheet of the page. Dark only on a screen that asks for it: paper is always printed light."""
    palettes = f":root{{{_variables(LIGHT)}color-scheme:light dark}}"
    palettes += f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    return palettes + _squeeze(_read("chart.css")) + _squeeze(_read("page.css"))


def chart_css():
    """The style sheet of a stand-alone SVG: colours written out, as many viewers know no CSS variables."""
    css = _squeeze(_read("chart.css"))

    def coloured(palette):
        return re.sub(r"var\(--([\w-]+)\)", lambda match: palette[match[1]], css)

    return f"{coloured(LIGHT)}@media (prefers-color-scheme:dark){{{coloured(DARK)}}}"


def script():
    """The page's JavaScript: pointer notes and the arm switches. The page says everything without it too."""
    return _read("page.js")
