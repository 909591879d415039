"""The whole chain on one model size: train, measure, allocate, train the arms, compare, report.

Reads   the text to train on (by default the source of the running Python's standard library: nothing is fetched)
Writes  a run folder: settings.json, arms/ARM/seed-S/ (metrics.jsonl, model), work.json, schedules/ARM.json,
        comparison.json, report.html with CSV and JSON beside it

The uniform arm of the first seed is the reference that is measured. All arms have the same parameter budget, tokens and
seeds. An arm is any schedule (geowidth allocate --list), or CONTROL-SCHEDULE; reversed, permuted, sorted and inverse
alone are controls of geometry. Options stand behind a colon. Stop it at any time: what is finished is kept, and the
same command goes on and ends with the same numbers.

--on trains elsewhere, with the same numbers: dask://HOST:PORT is a dask.distributed scheduler (dask scheduler, dask
worker; what a dead worker had goes to another), slurm:partition=NAME,time=MINUTES,cpus=N,gpus=N,memory=GB submits one
job a training. The folder must lie where all workers see it; pip install 'geowidth[cluster]' brings both.

Examples
  geowidth run --preset nano
  geowidth run --preset nano --arms uniform crown reversed-crown cosine:start=1.6,end=0.4
  geowidth run --preset nano --arms uniform geometry geometry:statistic=gw_entropic permuted:seed=3
  geowidth run --preset nano --dry-run --effect 0.005
  geowidth run --preset nano --on dask://10.0.0.1:8786
  geowidth run --preset nano --out runs/longer --steps 1000 --seeds 0 1 2 3 4
"""

from pathlib import Path

from geowidth.chain import planned, resolve, run_chain
from geowidth.cli import words


def add_arguments(parser):
    """The options of `geowidth run`."""
    add = parser.add_argument
    add(
        "--preset",
        metavar="NAME",
        type=words.preset,
        default="nano",
        help="model size and training settings: a name, or a .toml or .json file",
    )
    add("--out", metavar="DIR", help="run folder (default: runs/PRESET)")
    add("--corpus", metavar="TEXT", default="stdlib", help=words.CORPUS)
    add(
        "--arms",
        nargs="+",
        metavar="ARM",
        help="schedules, controls of them, each with options (default: the preset's)",
    )
    add("--seeds", nargs="+", type=words.whole(0), metavar="N", help="paired seeds (default: the preset's)")
    add("--steps", type=words.whole(), metavar="N", help="training steps of every arm (default: the preset's)")
    add("--tokens", type=words.whole(4), metavar="N", help="tokens in the measured cloud (default: the preset's)")
    add(
        "--geometry",
        metavar="NAME",
        type=words.one_of(words.geometries),
        default="hyperbolic",
        help="of the signal to allocate by: raw, spherical or hyperbolic",
    )
    add(
        "--statistic",
        metavar="NAME",
        type=words.one_of(words.statistics),
        default="topology",
        help="the signal to allocate by: shift, gw, topology or gw_entropic",
    )
    add("--seed", metavar="N", type=words.whole(0), default=0, help="of the drawing of tokens and of permuted arms")
    words.add_sweep(add)
    words.add_dry_run(add)
    add("--effect", metavar="X", type=words.positive(), help="with --dry-run: difference to count seeds for (0.01)")


def run(arguments):
    words.check_used(arguments, dry_run=("sd", "effect"))
    own = ("out", "processes", "on", "device", "dry_run", "sd", "effect")
    chain = resolve(**{name: value for name, value in vars(arguments).items() if name not in own})
    folder = Path(f"runs/{chain.preset.name}" if arguments.out is None else arguments.out)
    if arguments.dry_run:
        return preview(chain, folder, arguments)
    where = {name: getattr(arguments, name) for name in ("processes", "on", "device")}
    page = run_chain(chain, folder, **where)
    print(f"report: {page}")


def preview(chain, folder, arguments):
    """Print the run's cells, what is left to do, and what its seeds show."""
    from geowidth.plan.sweep import plan_sweep
    from geowidth.train.power import power_of
    from geowidth.train.world import training_device

    device = "cpu" if words.elsewhere(arguments.on) else str(training_device(arguments.device or "cpu"))
    plan = plan_sweep(planned(chain, folder), words.side_by_side(arguments), device)
    effect = 0.01 if arguments.effect is None else arguments.effect
    power = power_of(len(chain.seeds), plan.losses, spread=arguments.sd, effect=effect, unit=plan.unit)
    print("\n".join(plan.lines(power)))
