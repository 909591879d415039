"""What gradients tell about the blocks of a trained model, what changes it, and models tapered by it (CascadeFormer).

  geowidth cascade importance MODEL     importance of every block beside its gradient share
  geowidth cascade study                do late blocks regain importance when they get more of the gradient?
  geowidth cascade models               tapered models, and uniform ones of as many parameters or FLOPs

importance
  Reads   MODEL: a folder that `geowidth train --ledger` wrote, or another model with --ledger FILE; and held-out text
  Writes  --out: importance.json: what the loss grows by when a block is left out, with the standard error over windows
          (paired); the accumulated gradient shares; Spearman's and Pearson's correlation of the two with intervals

study
  Reads   a preset and its corpus
  Writes  a folder (--out, default runs/cascade-PRESET): arms/ARM/seed-S/ with a ledger and the importance of every
          block, study.json, report.html with CSV beside it

  An arm is a plain training (adamw, sgd) or an intervention: equal-adamw, equal-sgd, repeat, exits-equal,
  exits-layerskip, dropout; options stand behind a colon, as in repeat:repeat_last=3. Each is held against the plain arm
  of its optimiser, seed by seed. SGD's learning rate is the best of --sgd-rates by one training each, of a seed that no
  arm has. Stop it at any time: what is finished is kept, and the same command goes on and ends with the same numbers.

models
  Reads   a preset
  Writes  a folder (--out, default cascade-models-PRESET): A.json (attention heads fall in steps), F.json (FFN widths
          fall on a line), AF.json (both), uniform.json, and uniform models that come nearest to AF in parameters or
          FLOPs, with another width or depth; models.json says what each costs. A file is a schedule for geowidth train
          --schedule, or where the number of layers differs a preset for geowidth train --preset

  Tapers spend --share of the uniform model's heads and FFN parameters: all of them, unless told otherwise.

Examples
  geowidth cascade importance runs/nano --out importance.json --plot importance.svg
  geowidth cascade study --preset nano
  geowidth cascade study --preset nano --arms adamw repeat repeat:repeat_last=1 --seeds 0 1 2 --dry-run
  geowidth cascade models --preset 128m --share 0.8 --multiple 64 --out models
"""

from pathlib import Path

from geowidth.cli import words
from geowidth.errors import UserError

ACTIONS = ("importance", "study", "models")
IMPORTANCE = ("plot", "corpus", "windows", "context", "seed", "confidence", "device", "download", "cache")
STUDY = ("preset", "corpus", "arms", "seeds", "steps", "windows", "seed")
MODELS = ("start", "end", "levels", "multiple", "share")
# Options that an action has a use for, and what an option is where it is left out, unless that is None.
USED = {
    "importance": ("model", "out", "ledger", *IMPORTANCE),
    "study": ("out", "sgd_rates", "processes", "on", "device", "dry_run", *STUDY),
    "models": ("out", "preset", *MODELS),
}
USUAL = {"corpus": "stdlib", "seed": 0, "confidence": 0.95, "download": False, "dry_run": False}
USUAL |= {"start": 1.5, "end": 0.5, "multiple": 1, "share": 1.0}
WINDOWS = {"importance": 32, "study": 64}


def add_arguments(parser):
    """The options of `geowidth cascade`."""
    add = parser.add_argument
    add("action", metavar="ACTION", type=words.one_of(ACTIONS), help="importance, study or models")
    add("model", metavar="MODEL", nargs="?", help="of importance: folder, name or .gguf file")
    add("--out", metavar="PATH", help="the record (default: importance.json), or the folder of a study or of models")
    add("--corpus", metavar="TEXT", default="stdlib", help=words.CORPUS)
    add("--windows", metavar="N", type=words.whole(2), help="windows of held-out text (default: 32; study: 64)")
    add("--seed", metavar="N", type=words.whole(0), default=0, help="of the drawing of windows")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: cpu)")
    add = parser.add_argument_group("of importance").add_argument
    add("--ledger", metavar="FILE", help="ledger of the training (default: ledger.json in MODEL)")
    add("--plot", metavar="FILE", type=words.output(".svg"), help="also draw it (.svg)")
    add("--context", metavar="N", type=words.whole(2), help="tokens a window (default: the model's, at most 256)")
    add("--confidence", metavar="X", type=words.share(), default=0.95, help="of the intervals")
    add("--download", action="store_true", help="fetch a Hugging Face name that is not here yet")
    add("--cache", metavar="DIR", help="where converted models are kept (default: $GEOWIDTH_CACHE)")
    add = parser.add_argument_group("of study").add_argument
    add("--preset", metavar="NAME", type=words.preset, help="model and training: a name, or a file (default: nano)")
    add("--arms", nargs="+", metavar="ARM", help="plain arms and interventions (default: all)")
    add("--seeds", nargs="+", type=words.whole(0), metavar="N", help="paired seeds (default: the preset's)")
    add("--steps", type=words.whole(), metavar="N", help="training steps of every arm (default: the preset's)")
    add("--sgd-rates", nargs="+", type=words.positive(), metavar="X", help="learning rates to choose SGD's from")
    add(
        "--processes",
        metavar="N",
        type=words.whole(),
        help="trainings side by side (default: one a core; with --on as many as its workers take)",
    )
    add("--on", metavar="PLACE", type=words.place, help="train there: dask://HOST:PORT, slurm:... or local")
    add("--dry-run", action="store_true", help="print cells and cost; do nothing")
    add = parser.add_argument_group("of models, beside --preset").add_argument
    add("--share", metavar="X", type=words.positive(), default=1.0, help="of heads and FFN parameters that is spent")
    add("--start", metavar="X", type=words.positive(), default=1.5, help="first layer over the mean")
    add("--end", metavar="X", type=words.positive(), default=0.5, help="last layer over the mean")
    add("--levels", metavar="N", type=words.whole(), help="steps of heads (default: 4, or what leaves fewest unspent)")
    add("--multiple", metavar="Q", type=words.whole(), default=1, help="FFN widths are multiples of it")


def run(arguments):
    check_used(arguments)
    if arguments.windows is None:
        arguments.windows = WINDOWS.get(arguments.action)
    return {"importance": importance, "study": study, "models": models}[arguments.action](arguments)


def check_used(arguments):
    """Refuse options that the action has no use for, and importance without a model."""
    action, found = arguments.action, dict(vars(arguments))
    model = found.pop("model")
    given = [name for name in found if name not in ("action", *USED[action]) and found[name] != USUAL.get(name)]
    if given:
        flag = given[0].replace("_", "-")
        raise UserError(f"--{flag} came with cascade {action}, which has no use for it; leave it out")
    if action == "importance" and model is None:
        raise UserError("geowidth cascade importance needs MODEL, a folder that geowidth train --ledger wrote")
    if action != "importance" and model is not None:
        raise UserError(f"geowidth cascade {action} makes its own models; leave out {model}")


def importance(arguments):
    """Write the record of one model, and print it."""
    from geowidth.cascade.ledger_and_importance import compare_importance

    out = "importance.json" if arguments.out is None else arguments.out
    if not out.lower().endswith(".json"):
        raise UserError(f"--out is {out!r}; allowed: a file whose name ends in .json")
    arguments.device = arguments.device or "cpu"
    given = {name: getattr(arguments, name) for name in IMPORTANCE}
    record = compare_importance(arguments.model, arguments.ledger, out, **given)
    print(table(record))
    for name, found in record["correlations"].items():
        print(sentence(name, found))
    print(f"importance: {out}")
    if arguments.plot is not None:
        print(f"picture: {arguments.plot}")


def table(record):
    """A row a block: importance with its standard error, gradient share, fan-in."""
    lines = [f"block {'importance':>11} {'error':>9} {'share':>8} {'fan-in':>7}"]
    columns = ("importance", "standard_errors", "shares", "fan_in")
    for block, row in enumerate(zip(*(record[name] for name in columns), strict=True)):
        value, error, share, paths = row
        lines.append(f"{block:5d} {value:11.4f} {error:9.4f} {share:8.4f} {paths:7.0f}")
    return "\n".join(lines)


def sentence(name, found):
    """A correlation of a record in words."""
    from geowidth.cascade.correlation import Correlation
    from geowidth.cascade.plot import sentence as in_words

    interval = None if found["interval"] is None else tuple(found["interval"])
    return in_words(name, Correlation(found["value"], interval, found["confidence"], found["pairs"]))


def study(arguments):
    """Do what is left of a study, draw its page, and print what came out."""
    from geowidth.cascade.study import run_study
    from geowidth.cascade.study_design import resolve_study
    from geowidth.report.cascade_write import write_study_report

    arguments.preset = arguments.preset or "nano"
    given = {name: getattr(arguments, name) for name in STUDY}
    chosen = resolve_study(**given, rates=arguments.sgd_rates)
    folder = Path(f"runs/cascade-{chosen.preset.name}" if arguments.out is None else arguments.out)
    if arguments.dry_run:
        return preview(chosen, folder, arguments)
    where = {name: getattr(arguments, name) for name in ("processes", "on", "device")}
    record = run_study(chosen, folder, **where)
    page = write_study_report(folder)
    print("\n".join([record["headline"], *record["sentences"], *record["plain"], *record["notes"]]))
    print(f"report: {page}")


def preview(chosen, folder, arguments):
    """Print the study's cells and what is left to do."""
    from geowidth.cascade.study_design import planned_study
    from geowidth.plan.sweep import plan_sweep
    from geowidth.train.world import training_device

    device = "cpu" if words.elsewhere(arguments.on) else str(training_device(arguments.device or "cpu"))
    plan = plan_sweep(planned_study(chosen, folder), words.side_by_side(arguments), device)
    least = f"{len(chosen.seeds)} seeds: no exact sign-flip p below {2.0 ** (1 - len(chosen.seeds)):.2g}"
    print("\n".join(plan.lines(None, f"{least}; how far shares of late blocks scatter is known after the first seeds")))


def models(arguments):
    """Write the files of the models, and print what each costs beside the uniform one."""
    from geowidth.cascade.model_files import write_cascade_models
    from geowidth.models.presets import preset_named

    preset = preset_named(arguments.preset or "nano")
    given = {name: getattr(arguments, name) for name in MODELS}
    options = {"steps": given.pop("levels"), "quantum": given.pop("multiple"), **given}
    out = f"cascade-models-{preset.name}" if arguments.out is None else arguments.out
    record = write_cascade_models(preset, out, **options)
    print(f"{'model':26} layers {'parameters':>14} {'':6} {'FLOPs/token':>14} {'':6} {'cache B/token':>13}")
    for name, facts in record["models"].items():
        pairs = ((facts[part], facts["over_uniform"][part]) for part in ("parameters", "flops", "cache_bytes"))
        cells = [f"{value:{size},} {over:6.3f}" for (value, over), size in zip(pairs, (14, 14, 13), strict=True)]
        print(f"{name:26} {facts['layers']:6d} {' '.join(cells)}")
    print(f"files: {out}")
