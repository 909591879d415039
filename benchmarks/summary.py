"""The table of the README, from the committed CSV files: ``python -m benchmarks.summary``.

Every number is the median CPU time of a peer over that of GeoWidth in the same run. A test holds the README against
this command's output.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.schema import read_rows

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Line:
    """One line of the table: what is done, in which file, by which rows, against which peers ({provider: words})."""

    what: str
    file: str
    mode: str
    x_value: float
    peers: dict


LINES = [
    Line(
        "distances, three geometries at once, n 2048, d 768",
        "distances",
        "all",
        2048,
        {"three torch passes": "torch, one after the other"},
    ),
    Line("distances, raw, n 2048, d 768", "distances", "raw", 2048, {"torch.cdist": "torch.cdist"}),
    Line(
        "Gromov-Wasserstein statistic with certificate, n 1024",
        "gromov",
        "statistic",
        1024,
        {"POT": "POT", "POT, identity": "POT from the identity"},
    ),
    Line(
        "entropic Gromov-Wasserstein, n 1024",
        "gromov",
        "entropic, eps 0.01",
        1024,
        {"POT": "POT", "POT, tuned, identity": "POT tuned", "ott-jax, warm, identity": "ott-jax"},
    ),
    Line(
        "persistence diagram, clustered, n 1024, d 64",
        "topology",
        "rips clustered d=64 spherical",
        1024,
        {"redzed-tda": "redzed-tda", "gudhi float32": "gudhi", "giotto-ph": "giotto-ph", "ripser": "ripser"},
    ),
    Line(
        "2-Wasserstein of those diagrams",
        "topology",
        "w2 clustered d=64 sup",
        1024,
        {"hera": "hera", "POT": "POT"},
    ),
    Line(
        "nine signals and dimension of SmolLM2's layers, n 512",
        "pipeline",
        "smollm2",
        512,
        {"libraries": "scipy, POT, gudhi, scikit-dimension"},
    ),
]


def table():
    """The Markdown table."""
    rows = ["| what, one thread | GeoWidth | times the time |", "|---|---|---|"]
    for line in LINES:
        found = {
            row.provider: row.p50
            for row in read_rows(RESULTS / f"{line.file}.csv")
            if row.mode == line.mode and row.metric == "cpu" and row.x_value == line.x_value
        }
        ours = found["geowidth"]
        peers = ", ".join(f"{words} {times(found[name] / ours)}" for name, words in line.peers.items())
        rows.append(f"| {line.what} | {seconds(ours)} | {peers} |")
    return "\n".join(rows)


def times(ratio):
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def seconds(value):
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.2g} s"


if __name__ == "__main__":
    print(table())
    sys.exit(0)
