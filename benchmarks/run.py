"""Run one benchmark: ``python -m benchmarks.run NAME [--quick] [--out FILE.csv] [--plot FILE.png]``.

Prints a table, and writes the rows as CSV where --out says (default: benchmarks/results/NAME.csv, or a file in the
temporary folder for a quick run, so that a quick run never overwrites committed results).
"""

import argparse
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from benchmarks.plot import draw
from benchmarks.schema import table, write_rows

# name: (module, one line of help). Modules load when called: a peer that is not installed stops only its own benchmark.
BENCHMARKS = {
    "distances": ("benchmarks.distances", "distance matrices against torch.cdist, scipy and three torch passes"),
    "precision": ("benchmarks.precision", "error of the distances by pair separation and geometry, against float64"),
    "gromov": ("benchmarks.gromov", "Gromov-Wasserstein statistic and entropic iterations against POT and ott-jax"),
    "ffn": ("benchmarks.ffn", "the feed-forward layer against plain torch, torch.compile and the bare products"),
    "topology": ("benchmarks.topology", "degree-one diagrams and their 2-Wasserstein distance against their peers"),
    "pipeline": ("benchmarks.pipeline", "nine signals of every layer against the same by scipy, POT and gudhi"),
    "tapering": ("benchmarks.tapering", "training steps and inference of tapered widths against uniform ones"),
    "cascade": ("benchmarks.cascade", "first token, time a token and throughput of CascadeFormer's models"),
}


def add_common_arguments(parser):
    parser.add_argument("--quick", action="store_true", help="small sizes, a minute at most")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    parser.add_argument("--plot", type=Path, help="image to draw (.png or .svg)")
    parser.add_argument("--metric", default="wall", help="metric to draw: wall, cpu or ratio (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of every provider (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the synthetic clouds (default: %(default)s)")


def default_output(name, quick):
    if quick:
        return Path(tempfile.gettempdir()) / f"geowidth-{name}-quick.csv"
    return Path(__file__).parent / "results" / f"{name}.csv"


def main(argv=None):
    """Run the benchmark that argv names; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in BENCHMARKS:
        print(__doc__.strip(), "", *(f"  {name:10} {BENCHMARKS[name][1]}" for name in BENCHMARKS), sep="\n")
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    name = argv[0]
    module = import_module(BENCHMARKS[name][0])
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.run {name}", description=module.__doc__)
    add_common_arguments(parser)
    module.add_arguments(parser)
    arguments = parser.parse_args(argv[1:])
    rows = module.run(arguments)
    print(table(rows))
    out = arguments.out or default_output(name, arguments.quick)
    write_rows(out, rows)
    print(f"{len(rows)} rows in {out}")
    if arguments.plot and draw(rows, arguments.plot, arguments.metric):
        print(f"drawn in {arguments.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
