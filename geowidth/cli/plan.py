"""Say what a training, a measurement, a calibration or a whole run takes on this machine, before any work.

Reads   a preset; with --schedule the widths of a schedule file; with --model the config of a model to measure or slice
Prints  parameters, FLOPs, memory, files and estimated time; a few seconds of a timed probe are all that runs
Writes  nothing; with --json prints strict JSON

plan presets prints a table of all presets: sizes, tokens, FLOPs, memory of one process, and hours on one H100 at 40 %
of its 989 TFLOP/s. geowidth train --dry-run says it of one training with all its options.

Examples
  geowidth plan presets
  geowidth plan run --preset nano
  geowidth plan train --preset nano --schedule schedule.json --steps 2000
  geowidth plan measure --tokens 2048
  geowidth plan measure --model smollm2 --tokens 256
  geowidth plan slice --model smollm2
"""

import dataclasses

from geowidth import records
from geowidth.cli import words
from geowidth.errors import UserError
from geowidth.plan.estimation import TASKS, estimate, estimate_model
from geowidth.progress import duration, size

# The options that each task has a use for, beside --preset and --json.
USED = {
    "train": ("schedule", "steps"),
    "measure": ("schedule", "tokens", "model"),
    "calibrate": ("seeds", "factors", "steps", "tokens", "processes", "on"),
    "run": ("arms", "seeds", "steps", "tokens", "processes", "on"),
    "slice": ("model", "calibration_windows"),
    "presets": (),
}


def add_arguments(parser):
    """The options of `geowidth plan`."""
    add = parser.add_argument
    add("task", type=words.one_of((*TASKS, "slice", "presets")), help=f"one of {', '.join(TASKS)}, slice, presets")
    add("--preset", metavar="NAME", type=words.preset, help="model size and training (default: nano)")
    add("--model", metavar="NAME", help="what measure or slice is to open: a folder, a .gguf file, smollm2, minilm")
    add("--calibration-windows", metavar="N", type=words.whole(2), help="windows that slicing looks at (default: 32)")
    add("--schedule", metavar="FILE", help="schedule.json whose widths the model gets (train and measure)")
    add("--steps", metavar="N", type=words.whole(), help="training steps (default: the preset's)")
    add("--tokens", metavar="N", type=words.whole(4), help="tokens in the measured cloud (default: the preset's)")
    add("--arms", nargs="+", metavar="ARM", help="arms of a run (default: the preset's)")
    add(
        "--seeds",
        nargs="+",
        metavar="N",
        type=words.whole(0),
        help="paired seeds of a run or calibration (default: as theirs)",
    )
    add(
        "--factors",
        nargs="+",
        metavar="X",
        type=words.positive(),
        help="width factors of a calibration (default: as its own)",
    )
    add(
        "--processes",
        metavar="N",
        type=words.whole(),
        help="trainings side by side (default: one a core; with --on one after another)",
    )
    add("--on", metavar="PLACE", type=words.place, help="where a run or calibration trains, as theirs; nobody is asked")
    add("--json", action="store_true", help="print the estimate as JSON")


def run(arguments):
    """Check, probe, print."""
    check_used(arguments)
    if arguments.task == "presets":
        return _print_presets(arguments)
    if arguments.task == "slice":
        return _print(arguments, *_slicing(arguments))
    preset, request = requested(arguments)
    if arguments.model is None:
        name, model = preset.name, preset.model
        found = estimate(arguments.task, preset, **request)
    else:
        from geowidth.plan.models import model_sizes

        if arguments.preset is not None or arguments.schedule is not None:
            raise UserError("--model came with a preset or a schedule; it is a model of its own: give one of them")
        sizes = model_sizes(arguments.model)
        name, model = sizes.name, sizes.config
        found = estimate_model(sizes, tokens=request["tokens"] or 512, processes=request["processes"])
    _print(arguments, found, name, model)


def _slicing(arguments):
    """(Estimate, name, ModelConfig) of slicing a model."""
    from geowidth.plan.models import model_sizes
    from geowidth.plan.slicing import estimate_slice

    if arguments.model is None:
        raise UserError("plan slice came without a model; give --model NAME")
    sizes = model_sizes(arguments.model)
    found = estimate_slice(sizes, calibration_windows=arguments.calibration_windows or 32)
    return found, sizes.name, sizes.config


def _print(arguments, found, name, model):
    if arguments.json:
        print(records.dumps(dataclasses.asdict(found), indent=1))
        return
    print("\n".join(lines(found, name, model)))


def check_used(arguments):
    """Refuse options that the task has no use for."""
    used = (*USED[arguments.task], *(() if arguments.task in ("presets", "slice") else ("preset",)))
    for name in sorted({"preset", *(option for options in USED.values() for option in options)}):
        if getattr(arguments, name) is not None and name not in used:
            raise UserError(f"--{name} came with plan {arguments.task}, which has no use for it; leave it out")


def _print_presets(arguments):
    from geowidth.models.presets import PRESETS
    from geowidth.plan.training import preset_rows, preset_table

    rows = preset_rows(PRESETS.values())
    print(records.dumps(rows, indent=1) if arguments.json else preset_table(rows))


def requested(arguments):
    """(Preset, keyword arguments of `estimate`) from the command line; raises UserError for what does not fit."""
    from geowidth.models.presets import preset_named

    task, preset = arguments.task, preset_named(arguments.preset or "nano")
    request = {"steps": arguments.steps, "tokens": arguments.tokens, "processes": words.side_by_side(arguments)}
    request["elsewhere"] = words.elsewhere(arguments.on)
    if arguments.schedule is not None:
        from geowidth.allocate import Schedule

        preset = preset.with_schedule(Schedule.read(arguments.schedule), f"geowidth plan {task}")
    if task == "run":
        request["models"] = _models_of_run(arguments, preset)
    if task == "calibrate":
        request["models"] = _models_of_calibration(arguments, preset)
    return preset, request


def _models_of_run(arguments, preset):
    """Widths of every training of a run. All arms spend the same, so uniform stands for each."""
    from geowidth.chain import resolve

    chain = resolve(preset, arms=arguments.arms, seeds=arguments.seeds, steps=arguments.steps)
    return [preset.model.widths] * (len(chain.arms) * len(chain.seeds))


def _models_of_calibration(arguments, preset):
    from geowidth.diagnose.calibration_design import CalibrationDesign

    given = {name: getattr(arguments, name) for name in ("seeds", "factors", "steps")}
    design = CalibrationDesign(preset, **{name: value for name, value in given.items() if value is not None})
    return [widths for _, widths, *_ in design.models()] * len(design.seeds)


def lines(found, name, model):
    """The estimate in words. model: the ModelConfig behind the name."""
    rows = [
        ("model", f"{name}: {model.layers} layers of dimension {model.dimension}, context {model.context}"),
        ("parameters", f"{found.parameters:,}, {found.ffn_parameters:,} of them in FFNs"),
    ]
    if found.models:
        facts = found.facts
        many = f"{found.models} trainings" if found.models > 1 else "1 training"
        rows.append(("trainings", f"{many} of {facts['steps']:,} steps, {facts['tokens_per_model']:,} tokens each"))
        if facts["processes"] > 1:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]}, {facts['processes']} side by side")
    rows += [
        ("FLOPs", f"{found.flops:.3g}"),
        ("memory", f"about {size(found.memory)}" + _states(found.facts) + _workers(found.facts) + _blocks(found.facts)),
        ("disk", f"about {size(found.disk)}"),
        ("files", "; ".join(found.files)),
        ("time", f"about {duration(found.seconds)} on this machine, as busy as it is now"),
    ]
    return [f"{name + ':':12} {text}" for name, text in rows]


def _workers(facts):
    """What each training takes where it runs, if that is elsewhere."""
    return f"; about {size(facts['worker_bytes'])} on a worker for each training" if facts.get("elsewhere") else ""


def _blocks(facts):
    """How much memory slicing takes with one block in memory at a time."""
    streamed = facts.get("streamed_bytes")
    return "" if streamed is None else f"; about {size(streamed)} block by block (geowidth slice --stream)"


def _states(facts):
    """How much memory the captured states take: before and after every FFN, of every token."""
    if "state_bytes" not in facts:
        return ""
    return f", {size(facts['state_bytes'])} of it for the states of {facts['measured_tokens']:,} tokens"
