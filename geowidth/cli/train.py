"""Train one transformer with the FFN widths of a schedule.

Reads   a preset (model and training settings), a schedule file written by `geowidth allocate` (without one, all layers
        get the preset's base width), and the corpus.
Writes  into --out: config.json, metrics.jsonl (one object a line: step, split, loss, tokens, seconds, ...),
        model.safetensors with model.json, and last result.json; while it trains, its last states in DIR/states.
        With --ledger also ledger.json: the gradient norms of every block, summed over all steps (geowidth prune)

Ctrl-C keeps a state in the folder; so does the clock, now and then. However the run ended, the same command goes on
from the last whole state and ends with the same bits as an uninterrupted run (on a CPU). A run that diverges stops and
says at which step; its states stay. Losses are in nats per byte, or per token where the corpus is tokens. Processes
that torchrun starts share the work; a run may go on with more or fewer of them, or with another --parallel.

Interventions on how gradients reach the blocks have options of their own: equal gradient norms (--equal-gradients;
AdamW undoes most of it, so try --optimizer sgd beside it), early exits and layer dropout in LayerSkip's manner
(--exit-loss, --layer-dropout), last blocks applied several times (--repeat-last). Validation is always of the plain
model; the training loss is that of the last exit, and the weighted sum that is minimised stands beside it as objective.

With --dry-run it says what the training takes (parameters, tokens, FLOPs, memory, time) and writes nothing.

Examples
  geowidth train --preset 128m --dry-run
  geowidth train --preset nano --out runs/uniform
  geowidth train --preset nano --schedule schedule.json --seed 1 --out runs/tapered-1
  geowidth train --preset nano --device auto --dtype bfloat16 --compile --recompute ffn --tensorboard --out runs/gpu
  geowidth train --preset nano --optimizer muon --decay wsd --decay-share 0.2 --learning-rate 2e-3 --out runs/muon
  geowidth train --preset nano --optimizer sgd --learning-rate 0.1 --momentum 0.9 --equal-gradients --out runs/equal
  geowidth train --preset nano --exit-loss 0.2 --exit-curriculum rotational --layer-dropout 0.1 --out runs/exits
  geowidth train --preset nano --repeat-last 2 --repeat-times 2 --out runs/repeated
  torchrun --standalone --nproc-per-node 2 -m geowidth train --preset nano --parallel fsdp --out runs/sharded
"""

from geowidth.cli import training_options, words
from geowidth.ranks import PARALLEL, TIMEOUT, is_first


def add_arguments(parser):
    """The options of `geowidth train`."""
    add = parser.add_argument
    add(
        "--preset",
        metavar="NAME",
        type=words.preset,
        default="nano",
        help=f"model and training settings: {', '.join(words.presets())}, or a .toml or .json file",
    )
    add("--schedule", metavar="FILE", help="schedule.json whose widths the model gets")
    add("--vocabulary", metavar="N", type=words.whole(), help="token ids of the model (default: the preset's)")
    add("--seed", metavar="N", type=words.whole(0), default=0, help="decides initial values and data order")
    add("--out", metavar="DIR", help="folder of the run; made if it does not exist (not needed with --dry-run)")
    add("--dry-run", action="store_true", help="say what the training takes, and stop")
    add("--corpus", metavar="TEXT", default="stdlib", help=words.CORPUS)
    add("--arm", metavar="NAME", help="name under which the run is compared (default: the schedule's name)")
    training_options.add_settings(parser)
    training_options.add_habits(parser)
    add("--ledger", action="store_true", help="gradient norms of every block in the metrics, their sums in ledger.json")
    add(
        "--parallel",
        metavar="WAY",
        type=words.one_of(PARALLEL),
        default="auto",
        help="how torchrun's processes share the work: ddp (each has the model), fsdp (each has a part of it), none",
    )
    add(
        "--patience",
        metavar="SECONDS",
        type=words.positive(),
        default=TIMEOUT,
        help="how long one of several processes waits for the others",
    )


def run(arguments):
    from geowidth.allocate import Schedule
    from geowidth.models.presets import preset_named
    from geowidth.train import checkpoint
    from geowidth.train.loop import train
    from geowidth.train.world import training_device

    preset = preset_named(arguments.preset).with_vocabulary(arguments.vocabulary)
    preset = preset.with_repeats(arguments.repeat_last, arguments.repeat_times)
    schedule = None if arguments.schedule is None else Schedule.read(arguments.schedule)
    preset = preset if schedule is None else preset.with_schedule(schedule, "geowidth train")
    arm = schedule.name if arguments.arm is None and schedule is not None else arguments.arm
    training_options.refuse_unused(arguments, preset)
    if arguments.dry_run:
        return preview(preset, arm, training_options.settings(arguments), str(training_device(arguments.device)))
    look = None
    if arguments.ledger and arguments.out is not None:
        from geowidth.cascade.training import block_norms, check_ledger

        check_ledger(arguments.out)
        look = block_norms
    done = arguments.out is not None and checkpoint.read_result(arguments.out) is not None
    result = train(
        preset,
        None,
        arguments.seed,
        arguments.out,
        arm=arm,
        initial_scales=None if schedule is None else schedule.initial_scales,
        corpus=arguments.corpus,
        parallel=arguments.parallel,
        patience=arguments.patience,
        look=look,
        **training_options.settings(arguments),
        **training_options.habits(arguments),
    )
    if not is_first():
        return
    if look is not None:
        from geowidth.cascade.training import write_ledger

        write_ledger(arguments.out)
    print(f"{arguments.out} {'was finished before' if done else 'is finished'}: {sentence(result)}")


def preview(preset, arm, changes, device="cpu"):
    """Print what the training takes. changes: training settings other than the preset's."""
    from dataclasses import replace

    from geowidth.plan.training import plan_training, time_here

    plan = plan_training(replace(preset, training=preset.with_training(**changes)))
    print("\n".join(time_here(plan, device).lines(arm, device)))


def sentence(result):
    """Loss, size and cost of a result in one line."""
    from geowidth.train.evidence import loss_unit

    bits = f" ({bits:.4f} bits per byte)" if (bits := result.get("bits_per_byte")) is not None else ""
    speed = result["tokens"] / max(result["seconds"], 1e-9)
    return (
        f"validation loss {result['loss']:.4f} {loss_unit(result['corpus'])}{bits}, "
        f"{result['parameters']:,} parameters, {result['tokens']:,} tokens, {result['seconds']:.0f} s, "
        f"{speed:,.0f} tokens/s{_mfu(result)}{_graphs(result)}"
    )


def _mfu(result):
    return f", MFU {100 * result['mfu']:.1f} %" if "mfu" in result else ""


def _graphs(result):
    """The graphs of torch.compile, and whether it had to break one."""
    if "compiled" not in result:
        return ""
    graphs, breaks = (result["compiled"][name] for name in ("graphs", "breaks"))
    return f", {graphs} graphs, {breaks} breaks"
