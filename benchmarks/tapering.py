"""What tapered widths cost in time: training steps and inference against uniform widths of equal parameters.

    python -m benchmarks.run tapering --rounds 9

The models take turns within every round; a ratio is taken round by round, so that what both met cancels. Widths are
multiples of 64 at one budget. `geometry` is allocated by a measured profile (gw x spherical of nano-work.json in
results, 8 layers); `shuffled` has the cosine's widths in a random order. Before anything is timed, the parameters of
all models are compared: at most 1 % apart.

Modes: "training step" (forward, backward, clipping, AdamW on one batch), "prefill" (logits of one whole context),
"one token" (the whole model on a single token), "one token, FFN" (its feed-forward layers alone).
"""

import argparse
from pathlib import Path

import torch

from benchmarks.schema import Row
from benchmarks.timing import interleave, ratio
from geowidth.allocate import allocate
from geowidth.errors import UserError
from geowidth.models import ModelConfig
from geowidth.models.transformer import TaperedTransformer
from geowidth.ops.threads import torch_threads

PROFILE = Path(__file__).parent / "results" / "nano-work.json"
LAYERS, HEAD_SIZE, QUANTUM, VOCABULARY = 8, 64, 64, 256
UNEQUAL = 0.01
SHORTEST = 0.05  # seconds of a turn: single tokens take milliseconds
SCHEDULES = {
    "uniform": {"schedule": "uniform"},
    "cosine": {"schedule": "cosine"},
    "linear": {"schedule": "linear"},
    "geometry": {"schedule": "geometry", "work": PROFILE, "statistic": "gw", "geometry": "spherical"},
    "shuffled": {"schedule": "cosine", "control": "permuted"},
}


def add_arguments(parser):
    """Options beside the common ones of benchmarks.run."""
    parser.add_argument("--dimensions", type=int, nargs="+", default=[512, 768], help="sizes d of the residual stream")
    parser.add_argument("--context", type=int, default=256, help="tokens of a sequence (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=2, help="sequences of a training step (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="timed turns of each model (default: %(default)s)")


def base_width(dimension):
    """8/3 of the dimension, to a multiple of 64: the FFN of a gated model with as much as 4 d without a gate."""
    return QUANTUM * round(8 * dimension / 3 / QUANTUM)


def widths(name, dimension):
    """The widths of one of SCHEDULES for LAYERS layers of this dimension."""
    shape = {"base_width": base_width(dimension), "layers": LAYERS, "model_dimension": dimension}
    return allocate(projections=3, quantum=QUANTUM, **shape, **SCHEDULES[name]).widths


def configs(dimension, context):
    """{schedule: ModelConfig} at one budget; refused when parameters differ by over UNEQUAL."""
    found = {}
    for name in SCHEDULES:
        w = widths(name, dimension)
        found[name] = ModelConfig(VOCABULARY, LAYERS, dimension, dimension // HEAD_SIZE, w, context)
    most, least = (pick(config.parameters for config in found.values()) for pick in (max, min))
    if least < (1 - UNEQUAL) * most:
        raise UserError(f"models have {least:,} to {most:,} parameters; equal ones are needed: use a larger dimension")
    return found


def training_step(model, batch):
    """A function that trains `model` by one step on `batch` (sequences, length + 1)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def inference(model, tokens):
    """A function that makes the logits of `tokens` (1, length)."""

    @torch.inference_mode()
    def forward():
        model(tokens)

    return forward


def layers_alone(model):
    """A function that sends one state (1, d) through every feed-forward layer of `model`."""
    x = torch.randn(1, model.config.dimension, generator=torch.Generator().manual_seed(0))

    @torch.inference_mode()
    def forward():
        for block in model.blocks:
            block.ffn(x)

    return forward


def modes(models, batch):
    """{mode: {schedule: function}}; training comes last, since it changes the weights."""
    context = batch[:1, :-1]
    return {
        "one token, FFN": {name: layers_alone(model) for name, model in models.items()},
        "one token": {name: inference(model, context[:, :1]) for name, model in models.items()},
        "prefill": {name: inference(model, context) for name, model in models.items()},
        "training step": {name: training_step(model, batch) for name, model in models.items()},
    }


def run(arguments):
    """Rows of all dimensions and modes: seconds of each schedule, and those of the tapered ones over uniform's."""
    dimensions, context, rounds = arguments.dimensions, arguments.context, arguments.rounds
    if arguments.quick:
        dimensions, context, rounds = [128], 32, 3
    rows = []
    with torch_threads(arguments.threads):
        for dimension in dimensions:
            models = {name: TaperedTransformer(c, arguments.seed) for name, c in configs(dimension, context).items()}
            generator = torch.Generator().manual_seed(arguments.seed)
            batch = torch.randint(0, VOCABULARY, (arguments.batch, context + 1), generator=generator)
            for mode, candidates in modes(models, batch).items():
                samples = interleave(candidates, rounds, least=SHORTEST)
                rows += rows_of(mode, dimension, models, samples, arguments.threads)
    return rows


def rows_of(mode, dimension, models, samples, threads):
    """Rows of one mode: wall and CPU seconds of each schedule, and ratios of CPU seconds to uniform's."""
    about = {"op": "tapering", "mode": mode, "x_name": "d", "x_value": dimension, "threads": threads}
    rows = []
    for name, model in models.items():
        note = f"{model.config.parameters:,} parameters, widths {' '.join(map(str, model.config.widths))}"
        for metric in ("wall", "cpu"):
            rows.append(Row(provider=name, metric=metric, note=note, **about, **samples[name].quantiles(metric)))
        if name != "uniform":
            rows.append(Row(provider=name, metric="ratio", **about, **ratio(samples, name, "uniform", "cpu")))
    return rows


def main(argv=None):
    """`python -m benchmarks.tapering`: the rows as a table, nothing written."""
    from benchmarks.run import add_common_arguments
    from benchmarks.schema import table

    parser = argparse.ArgumentParser(description=__doc__)
    add_common_arguments(parser)
    add_arguments(parser)
    print(table(run(parser.parse_args(argv))))


if __name__ == "__main__":
    main()
