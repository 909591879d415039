"""The options of how a model is trained, shared by the commands that train."""

from geowidth.cli import words

# Options that are training settings (geowidth.models.TrainingSettings); None leaves the preset's.
SETTINGS = (
    "steps", "batch", "microbatch", "learning_rate", "warmup", "decay", "decay_share", "optimizer", "weight_decay",
    "clip", "evaluations", "dtype", "compile", "recompute", "document_mask", "threads", "keep", "momentum",
    "equal_gradients", "exit_loss", "exit_weights", "exit_curriculum", "exit_period", "layer_dropout",
    "layer_dropout_curriculum",
)  # fmt: skip
# Settings that only these values of another one use: a preset may hold them all the same, an option has to have a use.
USED_BY = {"momentum": ("optimizer", ("muon", "sgd")), "exit_period": ("exit_curriculum", ("rotational",))}
# Options of one training that no setting holds.
HABITS = ("device", "save_seconds", "tensorboard", "peak_flops")


def add_settings(parser):
    """The options that are training settings, in a group of their own."""
    from geowidth.models.training import DECAYS, DTYPES, OPTIMIZERS, RECOMPUTE

    add = parser.add_argument_group("how it is trained (default: as the preset says)").add_argument
    share = words.number("numbers from 0 to 1", lambda value: 0 <= value <= 1)
    add("--steps", metavar="N", type=words.whole(), help="optimiser steps")
    add("--batch", metavar="N", type=words.whole(), help="sequences per step")
    add("--microbatch", metavar="N", type=words.whole(), help="sequences in memory at once; same gradient, less memory")
    add("--learning-rate", metavar="X", type=words.positive(), help="peak learning rate")
    add("--warmup", metavar="SHARE", type=share, help="share of the steps in which the rate rises to its peak")
    add(
        "--decay",
        metavar="SHAPE",
        type=words.one_of(DECAYS),
        help="how the rate falls: cosine over all other steps, or wsd: it stays at the peak, then falls in a line",
    )
    add("--decay-share", metavar="SHARE", type=share, help="wsd: share of the steps, the last ones, in which it falls")
    add(
        "--optimizer",
        metavar="NAME",
        type=words.one_of(OPTIMIZERS),
        help="adamw; muon for the matrices in the blocks and adamw for the rest (torch 2.9 or newer), one rate; or sgd "
        "with momentum, which wants a larger rate",
    )
    add(
        "--momentum",
        metavar="X",
        type=words.number("numbers from 0 up to below 1", lambda value: 0 <= value < 1),
        help="of muon and sgd",
    )
    add(
        "--weight-decay",
        metavar="X",
        type=words.number("numbers from 0 up", lambda value: 0 <= value < float("inf")),
        help="decoupled decay, on matrices only",
    )
    add("--clip", metavar="X", type=words.positive(), help="largest norm of the whole gradient")
    add("--evaluations", metavar="N", type=words.whole(), help="validation losses over the run, the last at its end")
    add(
        "--dtype",
        metavar="NAME",
        type=words.one_of(DTYPES),
        help="float32, or bfloat16 products with float32 weights, gradients, norms and losses",
    )
    add(
        "--compile",
        action="store_const",
        const=True,
        help="let torch.compile make kernels of the blocks, one graph a width (needs a C++ compiler; other bits)",
    )
    add(
        "--recompute",
        metavar="WHAT",
        type=words.one_of(RECOMPUTE),
        help="compute again in backward instead of keeping: ffn (its projections), block (all inside a block), none",
    )
    add(
        "--document-mask",
        action="store_const",
        const=True,
        help="attention does not cross from one document of a sequence into the next",
    )
    add("--threads", metavar="N", type=words.whole(), help="torch threads; another number, other bits")
    add("--keep", metavar="N", type=words.whole(), help="states kept while it is trained, the last ones (they are big)")
    add_interventions(parser)


def add_interventions(parser):
    """The options that change how gradients reach the blocks, in a group of their own."""
    from geowidth.models.training import DROPOUT_CURRICULA, EXIT_CURRICULA, EXIT_WEIGHTS

    add = parser.add_argument_group(
        "how gradients reach the blocks (deep supervision and layer dropout in LayerSkip's manner)"
    ).add_argument
    add(
        "--repeat-last",
        metavar="K",
        type=words.whole(0),
        help="apply the last K blocks --repeat-times times, with the same parameters",
    )
    add("--repeat-times", metavar="R", type=words.whole(), help="how often the last blocks are applied")
    add(
        "--equal-gradients",
        action="store_const",
        const=True,
        help="at every step scale the gradients of all blocks to one norm, their mean (AdamW undoes most of it)",
    )
    add(
        "--exit-loss",
        metavar="X",
        type=words.number("numbers from 0 up", lambda value: 0 <= value < float("inf")),
        help="scale of the losses of early exits, one after every block; they share the final norm and output matrix",
    )
    add(
        "--exit-weights",
        metavar="NAME",
        type=words.one_of(EXIT_WEIGHTS),
        help="how early exits weigh: layerskip: quadratically more with depth; equal: each --exit-loss times the last",
    )
    add(
        "--exit-curriculum",
        metavar="NAME",
        type=words.one_of(EXIT_CURRICULA),
        help="exits of a step: none: all; rotational: every --exit-period-th, by turns; gradual: from the last to the "
        "first over half of the training",
    )
    add("--exit-period", metavar="N", type=words.whole(), help="rotational: every N-th early exit takes its turn")
    add(
        "--layer-dropout",
        metavar="RATE",
        type=words.number("numbers from 0 up to below 1", lambda value: 0 <= value < 1),
        help="rate at which a sequence passes the last block by in training; less in earlier ones, 0 in the first",
    )
    add(
        "--layer-dropout-curriculum",
        metavar="NAME",
        type=words.one_of(DROPOUT_CURRICULA),
        help="exponential: the rate grows from 0 over the training (for training from scratch); none",
    )


def add_habits(parser):
    """The options that decide where one model is trained and what is written beside it."""
    add = parser.add_argument_group("where, and what is written beside it").add_argument
    add_device(add)
    add(
        "--save-seconds",
        metavar="SECONDS",
        type=words.number("numbers from 0 up", lambda value: 0 <= value < float("inf")),
        help="time between states, more if writing one takes long (default: 10; 0: after every step)",
    )
    add("--tensorboard", action="store_true", help="event files in DIR/tensorboard too (needs 'geowidth[log]')")
    add(
        "--peak-flops",
        metavar="X",
        type=words.positive(),
        help="FLOP/s of one device at best, as 9.89e14, for MFU (default: known for common GPUs in bfloat16)",
    )


def add_device(add):
    """The option --device."""
    add("--device", metavar="NAME", default="cpu", help="cpu, cuda, cuda:N, or auto: a GPU where there is one")


def settings(arguments):
    """{setting: value} of the options that were given."""
    return {name: getattr(arguments, name) for name in SETTINGS if getattr(arguments, name) is not None}


def refuse_unused(arguments, preset):
    """UserError for an option that changes a setting which the training of `preset` makes no use of."""
    from geowidth.errors import UserError

    training = preset.with_training(**settings(arguments))
    for name, (of, users) in USED_BY.items():
        given, found = getattr(arguments, name), getattr(training, of)
        if given not in (None, getattr(preset.training, name)) and found not in users:
            option, other = (f"--{setting.replace('_', '-')}" for setting in (name, of))
            raise UserError(f"{option} is {given}, but {other} is {found}; give {other} {' or '.join(users)} too")


def habits(arguments):
    """{argument of train: value} of the others that were given."""
    return {name: getattr(arguments, name) for name in HABITS if getattr(arguments, name) is not None}
