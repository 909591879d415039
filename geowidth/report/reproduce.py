"""The last section of the page: commands, versions, files, limits, and all settings as they were written."""

import shlex

from geowidth import records
from geowidth.report.charts import element, escape
from geowidth.report.facts import fact
from geowidth.report.folder import lookup
from geowidth.report.numbers import compact, is_finite

FILES = {
    "report.json": "the facts, verdicts and missing pieces of this page",
    "work.csv": "layer, geometry, statistic, unit, value",
    "widths.csv": "arm, layer, width, base width, floor, cap, at which bound",
    "losses.csv": "arm, seed, step, split, loss ({unit}), tokens, seconds",
    "comparison.csv": "the paired table, one line per arm; losses in {unit}",
}


def _block(title, *content):
    return element("div", element("h3", escape(title)) + "".join(content))


def command_words(command):
    """A command as markup whose lines break between words, never at the hyphens of an option."""
    return " ".join(element("span", escape(word), class_="w") for word in command.split(" "))


def _list(items):
    return element("ul", "".join(element("li", item) for item in items))


def reproduce(run):
    """The commands that make this run and this page again."""
    commands = [
        "pip install .",
        run.resume_command,
        f"geowidth report {shlex.quote(str(run.path))}",
    ]
    lines = element("pre", element("code", "\n".join(map(command_words, commands))))
    note = "Run in GeoWidth\u2019s source folder. The same seed and machine give the same bits; seconds will differ."
    return _block("Make it again", lines, element("p", escape(note)))


def limits(run, rows):
    """What the numbers do not say, from the numbers themselves."""
    sizes = [row.parameters for row in rows if is_finite(row.parameters)]
    seeds = max((len(row.losses) for row in rows), default=0)
    notes = []
    if sizes:
        notes.append(f"Models of {compact(max(sizes))} parameters: larger ones may behave otherwise.")
    if seeds:
        least = f"{2.0 ** (1 - seeds):.3g}"
        notes.append(
            f"{seeds} seed{'s' * (seeds != 1)} per arm: an exact two-sided sign-flip test cannot give p below {least}, "
            "and the t interval trusts that differences are roughly normal."
        )
    notes.append("One corpus and one training recipe, not tuned for each arm.")
    notes.append("The profile is that of one trained uniform model; another seed\u2019s may differ.")
    notes.append("Equal parameters are not equal seconds: both stand beside every loss.")
    return _block("Limits", _list(map(escape, notes)))


def versions(run):
    """Versions and machine, as the result files state them."""
    found = fact(run, "environment") or {}
    pairs = "".join(
        element("div", element("dt", escape(name)) + element("dd", escape(value))) for name, value in found.items()
    )
    return _block("Versions", element("dl", pairs, class_="facts small") if pairs else "<p>No file states them.</p>")


def files_list(run):
    """The files beside the page, and the run's own settings folded away."""
    items = [
        element("code", escape(name)) + f" {escape(text.format(unit=run.loss_unit))}" for name, text in FILES.items()
    ]
    settings = {
        "settings.json": run.settings,
        **{f"schedules/{n}.json": s.get("settings") for n, s in run.schedules.items()},
    }
    settings["work.json"] = (run.work or {}).get("settings")
    training = next((t.config for runs in run.arms.values() for t in runs.values() if t.config), None)
    settings["config.json of the first model"] = training
    settings["comparison.json"] = lookup(run.comparison, "settings")
    folded = [
        element("details", element("summary", f"Settings: {escape(name)}")
                + element("pre", element("code", escape(records.dumps(value, indent=1)))))
        for name, value in settings.items()
        if value
    ]  # fmt: skip
    return _block("Files beside this page", _list(items), *folded)
