"""Pairwise distances of the rows of an array, or of two arrays.

Reads   one or two .npy files (n, d) and (m, d) of any real dtype
Writes  --out: a .npy (n, m), float32 for half and single precision input, float64 for the rest. It is filled block by
        block in a memory map, so it may be larger than memory.

Examples
  geowidth distances states.npy --geometry spherical --out angles.npy
"""

import numpy as np

from geowidth.cli import words
from geowidth.cli.arrays import load_array
from geowidth.cli.npy import filling


def add_arguments(parser):
    parser.add_argument("x", help="rows (.npy)")
    parser.add_argument("y", nargs="?", help="other rows (.npy); default: x against itself")
    parser.add_argument(
        "--geometry",
        metavar="NAME",
        type=words.one_of(words.geometries),
        default="raw",
        help="raw, spherical or hyperbolic",
    )
    parser.add_argument(
        "--radius", metavar="X", type=words.share(), help="of the hyperbolic geometry's ball (default: tanh 1)"
    )
    parser.add_argument(
        "--out", required=True, metavar="FILE", type=words.output(".npy"), help="where the distances go (.npy)"
    )


def run(arguments):
    x = load_array(arguments.x)
    y = None if arguments.y is None else load_array(arguments.y)

    from geowidth.geometry import HYPERBOLIC_RADIUS
    from geowidth.ops import pairwise_distances

    radius = HYPERBOLIC_RADIUS if arguments.radius is None else arguments.radius
    kinds = [a.dtype for a in (x, y) if a is not None]
    dtype = np.float32 if all(k in (np.float16, np.float32) for k in kinds) else np.float64
    shape = (len(x), len(x if y is None else y))
    with filling(arguments.out, shape, dtype) as matrix:
        options = {"geometry": arguments.geometry, "radius": radius}
        if matrix.size:
            pairwise_distances(x, y, **options, out=matrix)
        else:  # checked all the same
            pairwise_distances(x, y, **options)
    print(f"{arguments.geometry} distances {shape[0]} x {shape[1]}, {np.dtype(dtype)}: {arguments.out}")
