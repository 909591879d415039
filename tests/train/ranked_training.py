"""What every process of a test does, started by torchrun: trains small models in several ways, one after another.

Arguments: folder, corpus, and names: "ddp" and "fsdp" train in a folder of that name; "chain" goes on with a training
that was begun, first sharded, then replicated; "resting" trains a model of which a microbatch leaves a part out.
"""

import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tiny_preset import TINY

from geowidth import records
from geowidth.ranks import joined
from geowidth.train import distributed, train
from geowidth.train.losses import accumulate_gradients
from geowidth.train.world import World

# Rows that no number of processes here divides, fewer than processes have microbatches; a layer without a width.
MODEL = replace(TINY.model, layers=3, widths=(7, 1, 0))
SETTINGS = replace(TINY.training, steps=100, batch=5, microbatch=2)
UNEVEN = replace(TINY, model=MODEL, training=SETTINGS)


def run(folder, corpus, parallel, **changes):
    """One training."""
    return train(UNEVEN, None, 3, folder, corpus=corpus, parallel=parallel, **changes)


def run_until(last, folder, corpus, parallel):
    """Train until the last process is told to end after step `last`; all save their state and stop there."""

    def watch(step, *_):
        if step == last and int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1:
            os.kill(os.getpid(), signal.SIGTERM if "RANK" in os.environ else signal.SIGINT)

    with contextlib.suppress(KeyboardInterrupt):
        run(folder, corpus, parallel, watch=watch)


def chain(folder, corpus):
    run_until(60, folder, corpus, "fsdp")
    kept = [path.name for path in (folder / "states").iterdir()]
    run_until(80, folder, corpus, "ddp")
    if os.environ["RANK"] == "0":
        records.write_json(folder / "kept.json", kept)


class Resting(torch.nn.Module):
    """Logits of 3 tokens out of two layers, of which the first is left out where a row begins with a 0."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.linspace(-1, 1 + number, parameter.numel()).view(parameter.shape))

    def forward(self, tokens):
        x = torch.nn.functional.one_hot(tokens, 3).float()
        for block in self.blocks[int(tokens[0, 0] == 0) :]:
            x = block(x)
        return x


# The first row uses both layers, the second rests one; a third makes the shares of two processes uneven.
ROWS = torch.tensor([[1, 2, 0], [0, 1, 2], [2, 0, 1]])


def gradients(world, model):
    """{name: gradient} of a batch of ROWS after one accumulation in microbatches of one row."""
    network = world.wrap(model)
    rows = world.rows(len(ROWS))
    own = ROWS[rows.start : rows.stop]
    loss = accumulate_gradients(network, own[:, :-1], own[:, 1:], 1, world)
    return {"loss": loss, "gradients": {name: p.grad.tolist() for name, p in model.named_parameters()}}


def resting(folder):
    with joined() as ranks:
        world = distributed.world_of("ddp", "cpu", ranks)
        found = world.gather(gradients(world, Resting()))
        if world.is_first:
            records.write_json(folder / "resting.json", found)


def resting_alone():
    return gradients(World(), Resting())


if __name__ == "__main__":
    place, text = Path(sys.argv[1]), sys.argv[2]
    for name in sys.argv[3:]:
        if name in ("ddp", "fsdp"):
            run(place / name, text, name)
        else:
            {"chain": lambda: chain(place / "chain", text), "resting": lambda: resting(place)}[name]()
