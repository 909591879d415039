"""What the files in benchmarks/results and the folders in benchmarks/experiments were made from, and which the code has
left behind.

    python -m benchmarks.committed             lists the stale ones (make results)
    python -m benchmarks.committed --draw      draws the pictures again from their profiles

Each of the two has a record.json with an entry for each file or folder: the command that makes it again, its date, and

    work      a work.json: what was measured, in words. Stale when a statistic has another revision than the file says
    picture   the work.json it shows and its title. Stale when drawing that again gives another picture
    rows      of benchmarks, mostly times. Stale when the digest of the sources they timed is not the one noted: such
              rows tell of the code of their date, and only a quiet machine can bring them up to date

    study     schedules trained on one text, with its digest. Stale when its profile is, or gives other widths today
    sweep     trainings on the texts whose digests are named. Stale when cells are of other texts
    tables    what is computed from studies. Stale when they give other tables
    cells     sliced models, one a line, and the tables, picture and page of them. Stale when the cells give others
    pruning   models without blocks, on the texts whose digests are named. Stale when its records are of other texts,
              or give other tables
    cascade   arms of gradients on one text, with its digest. Stale when the record is of another, or gives other files

The rows' own columns say on which processor and with which versions of what they were measured.
"""

import hashlib
import sys
from pathlib import Path

from geowidth import records

KIND, SCHEMA = "geowidth.committed_results", 1
RESULTS, EXPERIMENTS = (Path(__file__).parent / name for name in ("results", "experiments"))
RECORD = "record.json"


def entries(results=RESULTS):
    """{file name: entry} of the record."""
    return records.read_json(results / RECORD, KIND, SCHEMA)["results"]


def stale(results=RESULTS):
    """{file name: why} of all results that the code of today would not give, or that nothing is known of."""
    known, found = entries(results), {}
    present = {path.name for path in results.iterdir() if path.name not in (RECORD, "__pycache__")}
    present = {name for name in present if not name.endswith(".py")}
    for name in sorted(present | set(known)):
        if name not in known or name not in present:
            found[name] = "has no entry in the record" if name in present else "is not there"
        elif why := _CHECKS[known[name]["kind"]](results / name, known[name]):
            found[name] = why
    return found


def digest(patterns, root=RESULTS.parent.parent):
    """A digest of the sources that match any of the patterns, names and contents."""
    made = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        made.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return made.hexdigest()[:16]


def draw(results, entry):
    """The picture of an entry, as text."""
    from geowidth.report import profile_svg

    return profile_svg(results / entry["of"], title=entry["title"])


def draw_all(results=RESULTS):
    """Draw every picture of the record again."""
    for name, entry in entries(results).items():
        if entry["kind"] == "picture":
            records.write_text(results / name, draw(results, entry))


def _work(path, _):
    from geowidth.artifacts.work_profile import WorkProfile
    from geowidth.measure.statistics import revisions

    made = WorkProfile.read(path).settings.get("revisions", {})
    wanted = revisions(WorkProfile.read(path).settings["statistics"])
    old = [f"{name} {made.get(name)}, now {number}" for name, number in wanted.items() if made.get(name) != number]
    return f"revisions differ: {'; '.join(old)}" if old else None


def _picture(path, entry):
    same = path.read_text(encoding="utf-8") == draw(path.parent, entry)
    return None if same else f"is not {entry['of']} as drawn now"


def _rows(_, entry):
    return None if digest(entry["sources"]) == entry["digest"] else f"the code was changed since {entry['date']}"


def _study(path, entry):
    from benchmarks.experiments.study import SCHEDULES, chain_of
    from geowidth.chain import allocate_arm

    found = records.read_json(path / "comparison.json")["settings"]["corpus"]["digest"]
    if found != entry["text_digest"]:
        return f"is of a text with digest {found}, not {entry['text_digest']}"
    chain, kept, other = chain_of(path.name), records.read_json(path / SCHEDULES), []
    for arm in chain.arms:
        today = allocate_arm(chain, arm, path / "work.json" if arm.needs_work else None).widths
        other += [] if list(today) == kept[arm.name]["widths"] else [arm.name]
    return f"other widths come of it today: {', '.join(other)}" if other else _work(path / "work.json", entry)


def _sweep(path, entry):
    from benchmarks.experiments.baseline import read_cells

    found = {row["corpus"]: row["digest"] for row in read_cells(path)}
    return None if found == entry["text_digests"] else f"cells are of texts {found}, not {entry['text_digests']}"


def _tables(path, _):
    from benchmarks.experiments import order

    studies = order.committed_studies(path.parent)
    made = {name: text for name, text in order.results(studies).items() if text != (path / name).read_text("utf-8")}
    return f"the studies give another {', '.join(made)}" if made else None


def _cells(path, entry):
    from benchmarks.experiments.slicing import analysis, results

    rows = records.read_json_lines(path / analysis.GROUND)
    found = {row["text"]: row["corpus"][:16] for row in rows}
    if found != entry["text_digests"]:
        return f"cells are of texts {found}, not {entry['text_digests']}"
    made = [name for name, text in results.of_folder(path).items() if text != (path / name).read_text("utf-8")]
    return f"the cells give another {', '.join(made)}" if made else None


def _pruning(path, entry):
    from benchmarks.experiments import pruning

    models = pruning.committed_models(path / "records")
    found = {one["run"]["corpus"]: one["text"]["corpus"] for model in models for one in model.records}
    if found != entry["text_digests"]:
        return f"records are of texts {found}, not {entry['text_digests']}"
    made = [name for name, text in pruning.results(models).items() if text != (path / name).read_text("utf-8")]
    return f"the records give another {', '.join(made)}" if made else None


def _cascade(path, entry):
    from benchmarks.experiments import cascade
    from geowidth.cascade.study import read_study

    record = read_study(path)
    if record["corpus"]["digest"] != entry["text_digest"]:
        return f"is of a text with digest {record['corpus']['digest']}, not {entry['text_digest']}"
    made = [name for name, text in cascade.texts_of(record).items() if text != (path / name).read_text("utf-8")]
    return f"the record gives another {', '.join(made)}" if made else None


_CHECKS = {"work": _work, "picture": _picture, "rows": _rows, "study": _study, "sweep": _sweep, "tables": _tables}
_CHECKS |= {"cells": _cells, "pruning": _pruning, "cascade": _cascade}


def main(arguments=()):
    """Print every stale result with the command that makes it again; with --draw, draw the pictures first."""
    if "--draw" in arguments:
        draw_all()
    total = stale_ones = 0
    for folder in (RESULTS, EXPERIMENTS):
        found, known = stale(folder), entries(folder)
        for name, why in found.items():
            print(
                f"{name}: {why}; make it again with: {known.get(name, {}).get('command', 'an entry and its command')}"
            )
        total, stale_ones = total + len(known), stale_ones + len(found)
    print(f"{stale_ones} of {total} results are stale")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
