"""What the gradient ledger costs in the training loop: steps with and without it, by turns, and the medians of both.

    python -m benchmarks.ledger nano 200
    python -m benchmarks.ledger mini 20 --batch 4

One thread on the CPU. A step is what the loop does between two looks at the clock: batch, gradient, ledger, clipping,
optimiser, and its line of metrics. Seconds are those of the thread, so that what else runs on the machine counts less.
The difference of two steps is lost in their spread; so the parts in which they differ (norms, clipping, the line) are
timed alone too, by turns on the gradients that the last step left.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from geowidth.cascade.training import block_norms
from geowidth.train.metrics import Metrics
from geowidth.train.preparation import prepare
from geowidth.train.trainer import Habits, Trainer
from geowidth.train.world import World


def parts_of(preset, batch, look, folder):
    """(one step with its line of metrics, the part of it in which a ledger makes a difference) as functions."""
    changes = {} if batch is None else {"batch": batch}
    run = prepare(preset, None, 0, folder, **changes)
    folder.mkdir()
    trainer, metrics = Trainer(run, World(), Habits(look=look)), Metrics(folder, 0)

    def step():
        facts = trainer.one_step()
        metrics.write(step=trainer.step, split="train", **facts, **trainer.place(), **trainer.pace())

    def part():
        seen, norms = trainer.see()
        trainer.world.clip(trainer.model.parameters(), 1e9, norms)
        metrics.write(step=trainer.step, split="train", loss=1.2345678901234567, **seen)

    return step, part


def by_turns(actions, count):
    """{name: medians of seconds} of `count` calls of each after two that warm up, and the quartiles of differences."""
    found = {name: [] for name in actions}
    for number in range(count + 2):
        for name in sorted(actions, reverse=bool(number % 2)):
            taken = seconds(actions[name])
            if number >= 2:
                found[name].append(taken)
    plain, ledger = found["without"], found["ledger"]
    pairs = statistics.quantiles([b - a for a, b in zip(plain, ledger, strict=True)])
    return statistics.median(plain), statistics.median(ledger), pairs


def seconds(step):
    start = time.thread_time()
    step()
    return time.thread_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset")
    parser.add_argument("steps", type=int)
    parser.add_argument("--batch", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        made = {
            name: parts_of(arguments.preset, arguments.batch, look, Path(place) / name)
            for name, look in {"without": None, "ledger": block_norms}.items()
        }
        plain, ledger, pairs = by_turns({name: step for name, (step, _) in made.items()}, arguments.steps)
        without, with_it, parts = by_turns({name: part for name, (_, part) in made.items()}, 10 * arguments.steps)
    milli = "{:.3f} to {:.3f} ms".format
    print(f"{arguments.preset}: a step {1e3 * plain:.2f} ms without, {1e3 * ledger:.2f} ms with a ledger")
    print(f"  difference of pairs: median {1e3 * pairs[1]:.3f} ms, quartiles {milli(1e3 * pairs[0], 1e3 * pairs[2])}")
    print(f"its parts alone: {1e3 * without:.3f} ms without, {1e3 * with_it:.3f} ms with a ledger")
    print(f"  difference of pairs: median {1e3 * parts[1]:.3f} ms, quartiles {milli(1e3 * parts[0], 1e3 * parts[2])}")
    print(f"  of a step: {100 * parts[1] / plain:.2f} %")


if __name__ == "__main__":
    main()
