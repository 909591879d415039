"""Train small models with one layer's FFN width changed at a time, and fit the loss surrogate to their losses.

Reads   a preset and the corpus (by default the source of the running Python's standard library); with --work a work
        profile, otherwise the base model of the first seed is measured
Writes  --out: settings.json, runs/ (one training folder a model), work.json, calibration.json (curves, c and a of every
        layer with 95 % intervals, how well w^(-a) fits, Spearman of every signal with the fitted difficulties with
        depth controlled), curves.csv, curves.svg

Stop it at any time: finished trainings are kept and the same command goes on. The default is 100 trainings of the
nano model; `geowidth plan calibrate` times a moment of it here and says about how long all of it takes.

--on trains elsewhere, with the same numbers: dask://HOST:PORT is a dask.distributed scheduler (dask scheduler, dask
worker; what a dead worker had goes to another), slurm:partition=NAME,time=MINUTES,cpus=N,gpus=N,memory=GB submits one
job a training. The folder must lie where all workers see it; pip install 'geowidth[cluster]' brings both.

Examples
  geowidth calibrate --preset nano --out runs/calibration
  geowidth calibrate --preset nano --out runs/calibration --on dask://10.0.0.1:8786
  geowidth allocate --schedule calibrated --calibration runs/calibration/calibration.json --layers 8 --base 256
"""

from pathlib import Path

from geowidth.cli import words
from geowidth.diagnose.association import FEWEST_LAYERS


def add_arguments(parser):
    """The options of `geowidth calibrate`."""
    from geowidth.diagnose.calibration_design import DEFAULT_FACTORS, DEFAULT_SEEDS

    add = parser.add_argument
    seeds = " ".join(map(str, DEFAULT_SEEDS))
    shown = " ".join(f"{factor:g}" for factor in DEFAULT_FACTORS)
    add(
        "--preset",
        metavar="NAME",
        type=words.preset,
        default="nano",
        help="model size and training settings: a name, or a .toml or .json file",
    )
    add("--out", metavar="DIR", help="folder of the calibration (default: runs/calibration-PRESET)")
    add(
        "--factors",
        nargs="+",
        type=words.positive(),
        metavar="X",
        help=f"times the layer's width (default: {shown})",
    )
    add("--seeds", nargs="+", type=words.whole(0), metavar="N", help=f"paired seeds (default: {seeds})")
    add("--steps", metavar="N", type=words.whole(), help="steps of every training (default: the preset's)")
    add("--corpus", metavar="TEXT", default="stdlib", help=words.CORPUS)
    add("--work", metavar="FILE", help="work.json of the base model (default: measure it)")
    add("--tokens", metavar="N", type=words.whole(4), help="tokens in the measured cloud (default: the preset's)")
    words.add_sweep(add)


def run(arguments):
    """Train, fit, print the table."""
    from geowidth.diagnose.calibration import calibrate
    from geowidth.diagnose.calibration_plot import plot_calibration

    folder = Path(f"runs/calibration-{arguments.preset.name}" if arguments.out is None else arguments.out)
    names = ("preset", "seeds", "factors", "steps", "corpus", "tokens", "work", "processes", "on", "device")
    found = calibrate(folder, **{name: getattr(arguments, name) for name in names})
    plot_calibration(found, folder / "curves.svg")
    print(table(found))
    print(found.sentence)
    print(f"calibration: {folder / 'calibration.json'}, curves: {folder / 'curves.svg'}")


def table(calibration):
    """Layers with their fits, then signals with their correlations."""
    lines = ["layer  slope e a [95 %]              exponent a [95 %]      coefficient c  explained [95 %]"]
    for layer, row in enumerate(calibration.layers):
        e, a = _with_interval(row, "slope"), _with_interval(row, "exponent")
        c = f"{row['coefficient']:.4g}"
        lines.append(f"{layer:5}  {e:30} {a:22} {c:>13}  {_share(row)}")
    lines.append("signal                 Spearman with e, depth controlled (p)")
    undefined = "undefined" if len(calibration.layers) >= FEWEST_LAYERS else "not enough layers"
    for geometry, statistics in calibration.signals.items():
        for statistic, row in statistics.items():
            rho, p = row["difficulty"]["rho"], row["difficulty"]["p"]
            text = undefined if rho is None else f"{rho:+.2f} ({p:.2g})"
            lines.append(f"{geometry + ' x ' + statistic:22} {text}")
    return "\n".join(lines)


def _share(row):
    if row["explained_interval"] is None:
        return "not known"
    low, high = row["explained_interval"]
    return f"{100 * row['explained']:.0f}% [{100 * low:.0f}, {100 * high:.0f}]"


def _with_interval(row, name):
    low, high = row[f"{name}_interval"]
    return f"{row[name]:.4g} [{low:.3g}, {high:.3g}]"
