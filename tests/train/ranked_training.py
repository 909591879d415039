"""What every process of a test does, started by torchrun: trains small models in several ways, one after another.

Arguments: folder, corpus, and names of trainings below.
"""

import sys
from dataclasses import replace
from pathlib import Path

from tiny_preset import TINY

from geowidth.train import train

# Rows that no number of processes here divides, fewer than processes have microbatches; a layer without a width.
WIDTHS = (7, 1, 0)
MODEL = replace(TINY.model, layers=3, widths=(24, 24, 24))
SETTINGS = replace(TINY.training, steps=100, batch=5, microbatch=2)
UNEVEN = replace(TINY, model=MODEL, training=SETTINGS)
WAYS = {"ddp": {"parallel": "ddp"}, "fsdp": {"parallel": "fsdp"}, "alone": {"parallel": "none"}}


def run(folder, corpus, name, **changes):
    """One training by the name of its way."""
    return train(UNEVEN, WIDTHS, 3, folder / name, corpus=corpus, **WAYS[name], **changes)


if __name__ == "__main__":
    for name in sys.argv[3:]:
        run(Path(sys.argv[1]), sys.argv[2], name)
