"""Gromov-Wasserstein of two distance matrices whose points correspond, with certificate and split.

Reads   two .npy files (n, n): symmetric, finite, of one dtype
Prints  one JSON object: value E, gw = sqrt(E), the identity's value, the Frank-Wolfe gap, a proven lower bound, and the
        exact split into scale, eccentricity and shape; with --entropic the objective, marginal error and iterations.
        A search that did not converge says so on stderr, too
Writes  --out: the same object as a file; --coupling: the coupling (n, n) as .npy

Examples
  geowidth gromov before.npy after.npy --out gw.json
"""

import sys

from geowidth import records
from geowidth.cli import words
from geowidth.cli.arrays import load_array, save_array
from geowidth.errors import UserError


def add_arguments(parser):
    parser.add_argument("c1", help="distances of the first cloud (.npy)")
    parser.add_argument("c2", help="distances of the second cloud (.npy)")
    parser.add_argument("--entropic", action="store_true", help="the entropic problem instead of the exact statistic")
    parser.add_argument("--eps", metavar="X", type=words.positive(), help="of the entropic problem, absolute")
    parser.add_argument(
        "--eps-rel",
        metavar="X",
        type=words.positive(),
        help="of the entropic problem, over the centred spread (default: 0.1)",
    )
    parser.add_argument("--out", metavar="FILE", type=words.output(), help="also write the result (.json)")
    parser.add_argument("--coupling", metavar="FILE", type=words.output(".npy"), help="also write the coupling (.npy)")


def run(arguments):
    eps = _eps(arguments)
    c1, c2 = load_array(arguments.c1), load_array(arguments.c2)

    from geowidth.ops import entropic_gromov_wasserstein, gromov_wasserstein

    if arguments.entropic:
        result = entropic_gromov_wasserstein(c1, c2, **eps)
        coupling = result.coupling
    else:
        result = gromov_wasserstein(c1, c2)
        coupling = result.coupling()
    leave_out = {"coupling", "permutations", "weights"}
    facts = {name: getattr(result, name) for name in result.__dataclass_fields__ if name not in leave_out}
    facts = {name: value for name, value in facts.items() if getattr(value, "ndim", 0) == 0}
    facts = {**facts, "gw": result.value**0.5, "files": [arguments.c1, arguments.c2]}
    print(records.dumps(facts, indent=1))
    if not result.converged:
        print(not_converged(result), file=sys.stderr)
    if arguments.coupling is not None:
        save_array(arguments.coupling, coupling.numpy())
    if arguments.out is not None:
        records.write_json(arguments.out, facts)


def _eps(arguments):
    """The given one of eps and eps_rel, as keywords."""
    given = {name: getattr(arguments, name) for name in ("eps", "eps_rel") if getattr(arguments, name) is not None}
    if given and not arguments.entropic:
        raise UserError(f"--{next(iter(given)).replace('_', '-')} belongs to the entropic problem; add --entropic")
    if len(given) > 1:
        raise UserError("--eps and --eps-rel both came; give one of them")
    return given


def not_converged(result):
    """One line on a result whose search ended before its tolerance was met."""
    if hasattr(result, "gap"):
        left = f"its Frank-Wolfe gap is {result.gap:.3g} at a value of {result.value:.3g}"
    else:
        left = (
            f"a step would still move {result.change:.3g} of the mass, column sums miss {result.marginal_error:.3g}; "
            "a larger eps converges sooner"
        )
    return f"geowidth: not converged after {result.iterations} iterations: {left}"
