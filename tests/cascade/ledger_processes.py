"""Two processes of one training: what each records under DDP and FSDP2, held against one process on all rows.

Arguments: folder, corpus. The command trains in the folder too, a way each in a folder of its name.
"""

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_preset import TINY
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from geowidth import cli
from geowidth.cascade import GradientLedger, residual_blocks
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.models.presets import PRESETS
from geowidth.ranks import joined

TOKENS = torch.arange(24).view(4, 6) % 20


def loss_of(model, tokens):
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())


def recorded(network, model, rows):
    ledger = GradientLedger(residual_blocks(model))
    loss_of(network, rows).backward()
    ledger.record()
    return torch.from_numpy(ledger.result().norms.copy())


def compare(rank):
    model = TaperedTransformer(ModelConfig(20, 3, 16, 2, (24, 7, 5), 16), seed=1)
    sharded, alone = copy.deepcopy(model), copy.deepcopy(model)
    wanted = recorded(alone, alone, TOKENS)
    own = TOKENS[2 * rank : 2 * rank + 2]
    torch.testing.assert_close(recorded(DistributedDataParallel(model), model, own), wanted, rtol=1e-5, atol=0)
    for block in sharded.blocks:
        fully_shard(block)
    fully_shard(sharded)
    torch.testing.assert_close(recorded(sharded, sharded, own), wanted, rtol=1e-5, atol=0)


def trained(folder, corpus, way):
    """The code of `geowidth train --ledger`: rows that the processes share unevenly, clipped far below their norm."""
    words = ["train", "--preset", "tiny", "--ledger", "--parallel", way, "--corpus", str(corpus), "--out", str(folder)]
    return cli.main([*words, "--steps", "4", "--batch", "5", "--microbatch", "2", "--clip", "0.01"])


def main():
    with joined("cpu") as ranks:
        compare(dist.get_rank())
        ranks.barrier()
    PRESETS.register(TINY)
    if not any(trained(Path(sys.argv[1]) / way, sys.argv[2], way) for way in ("ddp", "fsdp")):
        print("same", flush=True)


if __name__ == "__main__":
    main()
