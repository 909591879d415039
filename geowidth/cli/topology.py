"""Degree-one Vietoris-Rips bars of a distance matrix, or the 2-Wasserstein distance between those of two.

Reads   one or two .npy files (n, n): symmetric, non-negative, zero diagonal; infinite entries are missing edges
Prints  how many bars, how many never die, total persistence; with two matrices the distance between their diagrams
Writes  --out: the first diagram (k, 2) of births and deaths as .npy

Examples
  geowidth topology before.npy after.npy
"""

from typing import Any

from geowidth import records
from geowidth.cli import words
from geowidth.cli.arrays import load_array, save_array
from geowidth.errors import UserError


def add_arguments(parser):
    parser.add_argument("distances", help="a distance matrix (.npy)")
    parser.add_argument("other", nargs="?", help="another distance matrix (.npy)")
    parser.add_argument(
        "--threshold",
        metavar="X",
        type=words.number("numbers from 0 up", lambda x: x >= 0),
        help="longer edges never enter (default: all finite ones do)",
    )
    parser.add_argument(
        "--ground",
        metavar="NAME",
        type=words.one_of(("sup", "euclidean")),
        default="sup",
        help="norm between points of diagrams: sup or euclidean",
    )
    parser.add_argument("--out", metavar="FILE", type=words.output(".npy"), help="where the first diagram goes (.npy)")


def run(arguments):
    paths = [p for p in (arguments.distances, arguments.other) if p is not None]
    matrices = [load_array(path) for path in paths]

    import numpy as np

    from geowidth.measure import diagram_distance, persistence_diagram

    diagrams = []
    for path, matrix in zip(paths, matrices, strict=True):
        try:
            diagrams.append(persistence_diagram(matrix, threshold=arguments.threshold))
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    facts: dict[str, Any] = {"diagrams": []}
    for path, diagram in zip(paths, diagrams, strict=True):
        finite = diagram[np.isfinite(diagram[:, 1])]
        total = float((finite[:, 1] - finite[:, 0]).sum())
        endless = len(diagram) - len(finite)
        facts["diagrams"].append({"file": path, "bars": len(diagram), "endless": endless, "total_persistence": total})
    if len(diagrams) == 2:
        facts["distance"] = diagram_distance(*diagrams, ground=arguments.ground)
        facts["ground"] = arguments.ground
    print(records.dumps(facts, indent=1))
    if arguments.out is not None:
        save_array(arguments.out, diagrams[0])
