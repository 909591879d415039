"""python -m benchmarks.experiments.slicing: see the package."""

import argparse
import sys
from pathlib import Path

from benchmarks.experiments.slicing import ROOT, results
from benchmarks.experiments.slicing.design import TEXTS
from geowidth import records
from geowidth.errors import UserError


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.slicing", description=__doc__)
    parser.add_argument("--run", action="store_true", help="compute the cells that are missing, then the tables")
    parser.add_argument("--prose", metavar="FOLDER", help="what benchmarks.experiments.prose wrote")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=TEXTS, help="run only the cells of these")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/slicing"), help="what is kept between stops, not committed"
    )
    given = parser.parse_args(argv)
    if given.prose is not None and not given.run:
        parser.error("--prose is for --run; give both")
    try:
        if given.run:
            from benchmarks.experiments.slicing.driver import run_all

            run_all(ROOT, given.work, given.prose, given.texts)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, text in results.of_folder(ROOT).items():
        records.write_text(ROOT / name, text)
        if name == results.TABLES:
            print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
