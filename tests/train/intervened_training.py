"""What every process of a test does, started by torchrun: trains with every intervention at once, by DDP and by FSDP2.

Arguments: folder, corpus.
"""

import sys
from dataclasses import replace
from pathlib import Path

from tiny_preset import TINY

from geowidth.cascade.training import block_norms
from geowidth.train import train

MODEL = replace(TINY.model, layers=3, widths=(7, 5, 0), repeat_last=2, repeat_times=2)
SETTINGS = replace(
    TINY.training,
    steps=6,
    batch=5,
    microbatch=2,
    learning_rate=0.1,
    optimizer="sgd",
    equal_gradients=True,
    exit_loss=0.5,
    exit_curriculum="rotational",
    exit_period=2,
    layer_dropout=0.6,
)


def run(folder, corpus, parallel):
    preset = replace(TINY, model=MODEL, training=SETTINGS)
    train(preset, None, 3, folder, corpus=corpus, parallel=parallel, look=block_norms, watch=lambda *_: None)


if __name__ == "__main__":
    for way in ("ddp", "fsdp"):
        run(Path(sys.argv[1]) / way, sys.argv[2], way)
