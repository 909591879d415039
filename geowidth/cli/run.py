"""The whole chain on one model size: train, measure, allocate, train the arms, compare, report.

Reads   the text to train on (by default the source of the running Python's standard library: nothing is fetched)
Writes  a run folder: settings.json, arms/ARM/seed-S/ (metrics.jsonl, model), work.json, schedules/ARM.json,
        comparison.json, report.html with CSV and JSON beside it

The uniform arm of the first seed is the reference that is measured. All arms have the same parameter budget, tokens and
seeds. Stop it at any time: what is finished is kept, and the same command goes on and ends with the same numbers.

Examples
  geowidth run --preset nano
  geowidth run --preset nano --out runs/longer --steps 1000 --seeds 0 1 2 3 4
"""

from pathlib import Path

from geowidth.chain import resolve, run_chain


def add_arguments(parser):
    parser.add_argument("--preset", default="nano", help="model size and training settings")
    parser.add_argument("--out", metavar="DIR", help="run folder (default: runs/PRESET)")
    parser.add_argument("--corpus", default="stdlib", help="stdlib, a text file, a folder or a JSONL file")
    parser.add_argument(
        "--arms", nargs="+", metavar="ARM", help="NAME, CONTROL-NAME or NAME:OPTION=VALUE,... (default: the preset's)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, metavar="S", help="paired seeds (default: the preset's)")
    parser.add_argument("--steps", type=int, help="training steps of every arm (default: the preset's)")
    parser.add_argument("--tokens", type=int, help="tokens in the measured cloud (default: the preset's)")
    parser.add_argument(
        "--geometry", default="hyperbolic", help="of the signal to allocate by: raw spherical hyperbolic"
    )
    parser.add_argument(
        "--statistic", default="topology", help="the signal to allocate by: shift gw topology gw_entropic"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the drawing of tokens and of permuted arms")
    parser.add_argument("--processes", type=int, help="trainings side by side (default: one a core)")


def run(arguments):
    given = {name: value for name, value in vars(arguments).items() if name not in ("out", "processes")}
    chain = resolve(**given)
    folder = Path(f"runs/{chain.preset.name}" if arguments.out is None else arguments.out)
    page = run_chain(chain, folder, processes=arguments.processes)
    print(f"report: {page}")
