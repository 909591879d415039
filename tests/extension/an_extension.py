"""One of everything that a module outside the package may add. GEOWIDTH_EXTENSIONS=an_extension loads it.

What the package calls here is noted in the file that the environment variable EXTENSION_NOTES names.
"""

import contextlib
import os
from pathlib import Path

import numpy as np
import torch

from geowidth.allocate.schedules import SCHEDULES, Rule, Shape
from geowidth.exchange.formats import FORMATS, Format
from geowidth.geometry import GEOMETRIES, Geometry
from geowidth.measure import FAMILIES, Family
from geowidth.measure.statistics import STATISTICS, Statistic
from geowidth.models import ModelConfig
from geowidth.models.presets import PRESETS, Preset, RunSettings
from geowidth.models.training import TrainingSettings
from geowidth.ops.backend import Backend
from geowidth.ops.persistence.operation import PERSISTENCE
from geowidth.report import SECTIONS, Section
from geowidth.slicing import WIDTH_RULES, WidthRule
from geowidth.train.executors import PLACES, Place


def note(word):
    """Write down that something of this module was called."""
    if "EXTENSION_NOTES" in os.environ:
        with open(os.environ["EXTENSION_NOTES"], "a") as file:
            file.write(f"{word} {os.getpid()}\n")


# A geometry: reference and plain torch only.
def city_blocks(x, y, _):
    """Sum of absolute differences, (n, d) and (m, d) to (n, m)."""
    return torch.cdist(x, y, p=1)


GEOMETRIES.register(Geometry("city", False, "blocks", pairwise=city_blocks))


# A statistic on the device, and one on the host.
def growth(cloud, geometry):
    """How much the mean distance between tokens changes."""
    before, after = cloud.distances[geometry]
    return float((after.mean() - before.mean()).abs()), {"before": float(before.mean())}


def reach(cloud, geometry):
    """The largest distance between tokens after the FFN."""
    note("reach")
    return float(np.asarray(cloud.on_host(geometry)[1]).max()), {}


STATISTICS.register(Statistic("growth", growth, geometries=("raw", "city")))
STATISTICS.register(Statistic("reach", reach, place="host", reads=("distances",)))


# Schedules: a shape, and one that reads measured work.
def steps(problem, *, rise=2.0):
    """Narrow in the first half, `rise` times as wide in the second."""
    return Shape(np.where(problem.depth < 0.5, 1.0, rise))


def in_proportion(problem, *, geometry="hyperbolic", statistic="topology"):
    """Widths in proportion to one signal."""
    return Shape(1e-9 + np.array(problem.work.signal(statistic, geometry)))


SCHEDULES.register(Rule("steps", "narrow, then wide", steps))
SCHEDULES.register(Rule("in_proportion", "in proportion to one signal", in_proportion, needs_work=True))


# A rule for the widths of a slice: it answers as schedules do, and may look at the model and at text.
def by_norms(evidence, problem, *, power=1.0):
    """In proportion to the norm of a layer's down-projection."""
    return Shape(np.array([float(ffn.columns().norm()) ** power for ffn in evidence.ffns]))


WIDTH_RULES.register(WidthRule("norms", "in proportion to the norms of down-projections", by_norms))


# A model family, and a model of it.
class ToyBlock(torch.nn.Module):
    """stream + out(tanh(into(stream)))."""

    def __init__(self, width):
        super().__init__()
        self.before = torch.nn.Identity()
        self.into, self.out = torch.nn.Linear(6, width), torch.nn.Linear(width, 6)

    def forward(self, stream):
        return stream + self.out(torch.tanh(self.into(self.before(stream))))


class Toy(torch.nn.Module):
    """Two blocks of widths 5 and 9 over an embedding of 11 tokens."""

    class config:
        model_type = "toy"
        max_position_embeddings = 8

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(11, 6)
        self.stages = torch.nn.ModuleList([ToyBlock(5), ToyBlock(9)])

    def forward(self, ids):
        stream = self.table(ids)
        for stage in self.stages:
            stream = stage(stream)
        return stream


FAMILIES.register(
    Family("toy", types="toy", layers=("stages",), before="before:input", added="out:output", down="out", projections=2)
)


# An export format that needs weights.
def write_sums(checkpoint, folder):
    """The sum of every tensor, one a line."""
    lines = [f"{name} {float(tensor.double().sum())!r}\n" for name, tensor in sorted(checkpoint.tensors.items())]
    Path(folder, "sums.txt").write_text("".join(lines))
    return [f"{len(lines)} sums"]


FORMATS.register(Format("sums", "the sum of every tensor", write_sums))

# A preset.
PRESETS.register(
    Preset(
        "femto",
        ModelConfig(vocabulary=256, layers=2, dimension=16, heads=2, widths=(24, 24), context=16),
        TrainingSettings(steps=4, batch=4, microbatch=4, learning_rate=1e-2, evaluations=1, evaluation_windows=8),
        RunSettings(seeds=(0,), arms=("uniform", "steps"), measured_tokens=24, multiple=4),
    )
)


# A backend of an operation: the compiled one, counted.
def counted(*arguments):
    """What the compiled backend gives."""
    note("counted")
    return next(b for b in PERSISTENCE.backends if b.name == "native").run(*arguments)


PERSISTENCE.add(Backend("counted", ("cpu",), counted))


# A section of the report.
def arms_by_name(run):
    """How many arms there are."""
    return f'<section id="outside"><h2>From outside</h2><p>{len(run.arm_names)} arms</p></section>'


SECTIONS.register(Section("outside", arms_by_name))


# A place where trainings run.
@contextlib.contextmanager
def noted(rest, folder):
    """Worker processes here, written down."""
    note(f"trained-{rest}")
    yield None


PLACES.register(Place("noted", "noted:WORD (here, written down)", noted))
