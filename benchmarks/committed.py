"""What every file in benchmarks/results was made from, and which of them the code has left behind.

    python -m benchmarks.committed             lists the stale ones (make results)
    python -m benchmarks.committed --draw      draws the pictures again from their profiles

results/record.json has an entry for each file: the command that makes it again, its date, and

    work      a work.json: what was measured, in words. Stale when a statistic has another revision than the file says
    picture   the work.json it shows and its title. Stale when drawing that again gives another picture
    rows      of benchmarks, mostly times. Stale when the digest of the sources they timed is not the one noted: such
              rows tell of the code of their date, and only a quiet machine can bring them up to date

The rows' own columns say on which processor and with which versions of what they were measured.
"""

import hashlib
import sys
from pathlib import Path

from geowidth import records

KIND, SCHEMA = "geowidth.committed_results", 1
RESULTS = Path(__file__).parent / "results"
RECORD = "record.json"


def entries(results=RESULTS):
    """{file name: entry} of the record."""
    return records.read_json(results / RECORD, KIND, SCHEMA)["results"]


def stale(results=RESULTS):
    """{file name: why} of all results that the code of today would not give, or that nothing is known of."""
    known, found = entries(results), {}
    present = {path.name for path in results.iterdir()} - {RECORD}
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


_CHECKS = {"work": _work, "picture": _picture, "rows": _rows}


def main(arguments=()):
    """Print every stale result with the command that makes it again; with --draw, draw the pictures first."""
    if "--draw" in arguments:
        draw_all()
    found, known = stale(), entries()
    for name, why in found.items():
        print(f"{name}: {why}; make it again with: {known.get(name, {}).get('command', 'an entry and its command')}")
    print(f"{len(found)} of {len(known)} results are stale")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
