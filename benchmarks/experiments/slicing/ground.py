"""What all cells of one text and one draw share, computed once and kept in the work folder.

windows      calibration and sensitivity windows from the validation split, windows to judge by from the test split;
             draws share none
profile      the nine signals on calibration text, as `geowidth measure` has them (float32)
statistics   Gram matrices of the whole model's hidden vectors, their means, neuron scores by three rules
blocks       block scores by the angle between a block's input and output

All products of the model but those of `profile` are in bfloat16 where the machine has them (see `products`).
"""

import contextlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from benchmarks.experiments.slicing import design
from geowidth import records
from geowidth.artifacts.work_profile import WorkProfile
from geowidth.cascade.blocks import residual_blocks
from geowidth.cascade.held_out import HeldOut, draw_held_out
from geowidth.cascade.scores import Evidence as BlockEvidence
from geowidth.cascade.scores import block_scores
from geowidth.measure.pipeline import MeasureSettings, measure_clouds
from geowidth.measure.states import capture
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.ffns import ffns_of
from geowidth.slicing.hidden import HiddenStatistics
from geowidth.tensors import read_tensors, write_tensors
from geowidth.text.corpus import load_corpus

BATCH = 4  # windows in a pass whose products are added up in float64


@contextlib.contextmanager
def products(half):
    """Inside, matrix products are in bfloat16 with sums in float32, the stream and the norms in float32."""
    with torch.autocast("cpu", torch.bfloat16, enabled=half), torch.no_grad():
        yield


@dataclass(frozen=True)
class Sizes:
    """How much text: windows of `context` tokens."""

    context: int = design.CONTEXT
    calibration: int = design.CALIBRATION
    held_out: int = design.HELD_OUT
    sensitivity: int = design.SENSITIVITY_WINDOWS
    tokens: int = design.SIGNAL_TOKENS
    windows: int = design.SIGNAL_WINDOWS
    draws: int = design.DRAWS

    def to_json(self):
        return dict(vars(self))


def shares_of(text, draws):
    """A HeldOut as `draws` HeldOuts of as many windows, none in two of them: every draws-th window each."""
    return [
        HeldOut(text.tokens[i::draws], text.targets[i::draws], text.settings | {"draw": i, "draws": draws})
        for i in range(draws)
    ]


class Library:
    """The model and the windows of every draw. corpora: {text: what load_corpus opens}. half: see `products`."""

    def __init__(self, opened, corpora, sizes, work, half=True):
        self.opened, self.sizes, self.work, self.half = opened, sizes, Path(work), half
        self.ffns, self.blocks = ffns_of(opened.model), residual_blocks(opened.model)
        self.corpora, self._windows, self._grounds = corpora, {}, {}

    def settings(self):
        """What every row depends on, so that a work folder holds parts of one study alone."""
        return {"model": self.opened.source, "sizes": self.sizes.to_json(), "half": self.half}

    def windows(self, text):
        """(calibration, sensitivity, held out) of every draw of a text."""
        if text not in self._windows:
            s, corpus = self.sizes, load_corpus(self.corpora[text])
            both = s.calibration + s.sensitivity
            early = draw_held_out(self.opened, corpus, "validation", windows=s.draws * both, context=s.context)
            late = draw_held_out(self.opened, corpus, "test", windows=s.draws * s.held_out, context=s.context)
            self._windows[text] = [
                (part(one, 0, s.calibration), part(one, s.calibration, both), other)
                for one, other in zip(shares_of(early, s.draws), shares_of(late, s.draws), strict=True)
            ]
        return self._windows[text]

    def ground(self, text, draw):
        """The Ground of a text and a draw; the last one alone is held in memory, beside those of draw 0."""
        if (text, draw) not in self._grounds:
            self._grounds = {key: one for key, one in self._grounds.items() if key[1] == 0}
            self._grounds[text, draw] = Ground(self, text, draw)
        return self._grounds[text, draw]

    def first(self, text):
        """The Ground of a text's draw 0."""
        if (text, 0) not in self._grounds:
            self._grounds[text, 0] = Ground(self, text, 0)
        return self._grounds[text, 0]


def part(text, start, stop):
    """Some windows of a HeldOut, chosen evenly so that both parts come from the whole of it."""
    order = torch.randperm(len(text.tokens), generator=torch.Generator().manual_seed(0))[start:stop].sort().values
    return replace(text, tokens=text.tokens[order], targets=text.targets[order])


class Ground:
    """See the module. Everything that takes long is read from the work folder, or computed and written there."""

    def __init__(self, library, text, draw):
        self.library, self.text, self.draw = library, text, draw
        self.calibration, self.sensitivity_text, self.held_out = library.windows(text)[draw]
        self.folder = library.work / f"{text}-{draw}"

    @cached_property
    def profile(self):
        """The WorkProfile: nine signals on `tokens` tokens of calibration windows."""
        path, s = self.folder / "work.json", self.library.sizes
        if not path.is_file():
            clouds = capture(
                self.library.opened.model, list(self.calibration.tokens), s.tokens, seed=self.draw, windows=s.windows
            )
            measure_clouds(clouds, MeasureSettings(seed=self.draw)).write(path)
        return WorkProfile.read(path)

    @cached_property
    def signals(self):
        """{"statistic/geometry": one value a layer}."""
        found = {name: self.profile.signal(*name.split("/")) for name in design.SIGNALS}
        return {name: [round_to(v, 6) for v in values] for name, values in found.items()}

    @cached_property
    def statistics(self):
        """{"gram", "mean"}: float32 tensors (layers, width, width) and (layers, width), where widths are equal."""
        path = self.folder / "statistics.safetensors"
        if not path.is_file():
            write_tensors(path, self._statistics())
        return read_tensors(path)[0]

    def _statistics(self):
        ffns, text = self.library.ffns, self.calibration
        gram = [torch.zeros(w, w, dtype=torch.float64) for w in ffns.widths]
        about = [HiddenStatistics.empty(w) for w in ffns.widths]

        def read(layer, h):
            h = h.float().reshape(-1, text.tokens.shape[1], h.shape[-1])
            about[layer].add(h)
            flat = h.flatten(0, 1)
            gram[layer] += flat.T @ flat

        with products(self.library.half):
            for tokens, _ in text.batches(BATCH):
                ffns.run(tokens, outside_autocast(read))
        found = {f"gram.{i}": g.float() for i, g in enumerate(gram)}
        for i, (one, ffn) in enumerate(zip(about, ffns, strict=True)):
            norms = ffn.column_norms()
            found |= {f"mean.{i}": one.mean, f"activation.{i}": one.root_mean_square * norms}
            found |= {f"fluctuation.{i}": one.variance * norms.square(), f"minitron.{i}": one.mean_size_norm}
        return found

    def scores(self, rule):
        """Neuron scores of every layer, float64 (width,) each."""
        return [self.statistics[f"{rule}.{i}"].double().numpy() for i in range(len(self.library.ffns))]

    def evidence(self, neurons):
        """What rules for widths look at."""
        return Evidence(
            self.library.ffns,
            text=self.sensitivity_text,
            neurons=neurons,
            scores=self.scores(neurons),
            profiles=[self.profile],
            kept_in=self.folder,
            seed=self.draw,
        )

    @cached_property
    def sensitivity(self):
        """What the loss of each sensitivity window grows by when a layer alone keeps half its neurons,
        (layers, windows)."""
        with products(self.library.half):
            return self.evidence("activation").losses([design.HALF]).differences(design.HALF)

    @cached_property
    def block_order(self):
        """Blocks in the order in which they go: the least angle between input and output first."""
        path = self.folder / "blocks.json"
        if not path.is_file():
            with products(self.library.half):
                found = block_scores("similarity", BlockEvidence(self.library.blocks, self.sensitivity_text))
            records.write_json(path, {"angles": found})
        return [int(i) for i in np.argsort(records.read_json(path)["angles"], kind="stable")]


def outside_autocast(read):
    """`read(layer, h)` with products as they are written."""

    def call(layer, h):
        with torch.autocast("cpu", enabled=False):
            return read(layer, h)

    return call


def round_to(value, digits):
    """A float with so many significant digits."""
    return float(f"{value:.{digits}g}")
