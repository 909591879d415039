"""What every process of a test does, started by torchrun: trains small models in several ways, one after another.

Arguments: folder, corpus, and names: "ddp" and "fsdp" train in a folder of that name; "chain" goes on with a training
that was begun, first sharded, then replicated; "measure" measures the model of that; "resting" trains one of which a
microbatch leaves a part out; "refuse" and "die" train by the command line, and the second process finds bad input in
the middle of a step, or is gone without a word: nothing comes after them.
"""

import contextlib
import functools
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tiny_preset import TINY

from geowidth import records
from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.measure import measure
from geowidth.models.presets import PRESETS
from geowidth.ranks import joined
from geowidth.train import distributed, loop, losses, train
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


def measured(folder, model, corpus):
    """The bytes of work.json and of the clouds of a model, which any number of processes give."""
    out, clouds = folder / "work.json", folder / "clouds.safetensors"
    with joined() as ranks:
        measure(model, corpus=corpus, tokens=48, out=out, save_clouds=clouds, ranks=ranks)
    return out.read_bytes(), clouds.read_bytes()


FAULT_AT = 20  # steps done before


def fail(how, folder, corpus):
    """`geowidth train` in which the second process fails."""
    passes, usual = [], losses.summed_loss

    def failing(*arguments):
        passes.append(torch.is_grad_enabled())
        if os.environ["RANK"] == "1" and sum(passes) > FAULT_AT * microbatches():
            if how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise UserError("the disk of this process is gone")
        return usual(*arguments)

    losses.summed_loss = failing
    loop.train = functools.partial(loop.train, save_seconds=0)  # a state after every step
    PRESETS.register(UNEVEN)
    words = ["--preset", "tiny", "--seed", "3", "--parallel", "fsdp", "--corpus", corpus]
    sys.exit(main(["train", *words, "--out", str(folder)]))


def microbatches():
    """Microbatches of a step, the same in every process: those of the most rows that one has."""
    most = -(-SETTINGS.batch // int(os.environ["WORLD_SIZE"]))
    return -(-most // SETTINGS.microbatch)


if __name__ == "__main__":
    place, text = Path(sys.argv[1]), sys.argv[2]
    for name in sys.argv[3:]:
        if name in ("ddp", "fsdp"):
            run(place / name, text, name)
        elif name in ("refuse", "die"):
            fail(name, place / name, text)
        elif name == "chain":
            chain(place / "chain", text)
        elif name == "measure":
            measured(place, place / "fsdp", text)
        else:
            resting(place)
