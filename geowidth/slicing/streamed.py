"""`geowidth slice --stream`: a Hugging Face folder sliced with one block's weights in memory at a time, for models that
are larger than the memory. What needs the model as a whole is refused: healing, biases, rules that measure the model.

Its losses are not taken, for the logits of the whole model are not made either: what slicing changed is told by the
states after the last layer, |sliced - whole|^2 / |whole|^2 over windows of the test split.
"""

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geowidth import memory, records
from geowidth.artifacts.schedule import Schedule
from geowidth.cascade.held_out import HeldOut, draw_held_out, mean_and_error
from geowidth.errors import UserError
from geowidth.exchange.checkpoint import folder_shapes, read_config, safetensors_files
from geowidth.exchange.remote_code import CLASSES
from geowidth.exchange.shape import TAPERED
from geowidth.models.storage import CONFIG_FILE
from geowidth.slicing.apply import check_text, checked_ridges
from geowidth.slicing.evidence import Evidence, Measures, Unmeasured
from geowidth.slicing.judge import last_states, ranges
from geowidth.slicing.request import CALIBRATION, JUDGED, KIND, RECORD_FILE, SCHEMA, SliceRequest
from geowidth.slicing.scores import NEURON_RULES
from geowidth.slicing.selection import kept_neurons
from geowidth.slicing.stages import Stages, fingerprint, stages_of
from geowidth.slicing.streaming import StreamedModel, slice_streaming
from geowidth.slicing.targets import Sizes
from geowidth.slicing.widths import Asked, fixed_widths, slice_widths
from geowidth.text.corpus import Corpus, load_corpus

COPIES = 2  # of the model in float32, when it is sliced in one piece


def wants_streaming(folder: Path) -> bool:
    """Whether a folder holds a model that can be streamed, and that this machine has no room for in one piece."""
    if (folder / CONFIG_FILE).is_file():
        return False
    kind = str(read_config(folder).get("model_type")).removeprefix(TAPERED)
    there = memory.available()
    if kind not in CLASSES or there is None:
        return False
    return COPIES * 4 * sum(map(math.prod, folder_shapes(folder).values())) > there


def slice_streamed(
    folder: Path, name: str, out: Path, request: SliceRequest, watch: Callable[[str], object] | None = None
) -> dict[str, Any]:
    """Slice the model in a folder into the new folder `out`, block by block; returns its record. See slice_model."""
    _refuse(request)
    job = Streamed(StreamedModel(folder), request, load_corpus(request.corpus), name)
    job.check()
    settings = {"model": fingerprint(folder), "name": name, "corpus_digest": job.corpus.digest, "streamed": True}
    with stages_of(out, settings | request.to_json(), watch) as stages:
        return job.work(stages, out)


def _refuse(request):
    """What cannot be done block by block."""
    asked = {"--heal": request.healing is not None, "--bias": request.bias, "--dtype": request.dtype != "keep"}
    asked |= {"--device": request.device != "cpu"}
    wrong = next((flag for flag, given in asked.items() if given), None)
    if wrong is not None:
        raise UserError(f"{wrong} came, and a model that is streamed has no place for it; leave it out")
    if NEURON_RULES[request.neurons].gradients:
        raise UserError(f"neuron rule {request.neurons} needs gradients of the whole model in memory; take activation")
    if not isinstance(request.target, Schedule) and "text" in Asked.parse(request.by).reads:
        raise UserError(
            f"rule {request.by} measures the whole model, and it is streamed; take uniform, threshold, a schedule's "
            "name, or --schedule FILE"
        )


class Streamed:
    """One slicing block by block."""

    def __init__(self, streamed: StreamedModel, request: SliceRequest, corpus: Corpus, name: str) -> None:
        self.streamed, self.request, self.corpus, self.name = streamed, request, corpus, name

    @cached_property
    def calibration(self) -> HeldOut:
        return self._drawn(CALIBRATION, self.request.calibration_windows)

    @cached_property
    def judged(self) -> HeldOut:
        return self._drawn(JUDGED, self.request.windows)

    def _drawn(self, split, windows):
        context, seed = self.request.context, self.request.seed
        return draw_held_out(self.streamed.opened, self.corpus, split, windows=windows, context=context, seed=seed)

    @cached_property
    def scores(self) -> list[np.ndarray]:
        return self.streamed.scores(self.calibration, self.request.neurons, self.request.seed)

    @property
    def sizes(self) -> Sizes:
        """Of the whole model, output matrix and all."""
        ffns, total = self.streamed.ffns, sum(map(math.prod, self.streamed.shapes.values()))
        return Sizes(ffns.widths, ffns.dimension, ffns.projections, ffns.biases, total)

    def check(self) -> None:
        """Refuse now what would be refused after a pass or more."""
        _, text, ffns = self.judged, self.calibration, self.streamed.ffns
        try:
            widths = self._widths(Unmeasured(self.sizes))["widths"]
        except Measures:  # any layer may keep nearly all
            widths = [width - 1 for width in ffns.widths]
        corrects = self.request.correct and tuple(widths) != ffns.widths
        if corrects:
            check_text(ffns, [torch.arange(width) for width in widths], text, checked_ridges(self.request.ridge))
        size = self.streamed.bytes(text.tokens.numel() if corrects else 0)
        memory.check("slicing block by block", size, "give fewer calibration windows")

    def work(self, stages: Stages, out: Path) -> dict[str, Any]:
        """All stages, and the result moved to `out`; returns its record."""
        request, model = self.request, stages.path("model")
        widths = stages.json("widths", lambda: self._widths(self._evidence()))
        found = stages.json("neurons", lambda: [k.tolist() for k in kept_neurons(self.scores, widths["widths"])])
        kept = [torch.tensor(layer, dtype=torch.int64) for layer in found]
        if not model.is_dir():
            calibration = self.calibration if request.correct else None
            report = slice_streaming(self.streamed, kept, model, calibration, ridge=request.ridge)
            records.write_json(stages.path("correction.json"), report.to_json())
            stages.done("model")
        whole = stages.tensors("whole", lambda: {"states": self._states(self.streamed)})["states"]
        record = self._facts(widths, kept, model)
        record["correction"] = stages.json("correction", dict)
        record |= stages.json("judged", lambda: {"states": self._errors(whole, self._states(StreamedModel(model)))})
        records.write_json(model / RECORD_FILE, record)
        if out.is_dir():
            out.rmdir()
        model.rename(out)
        return records.read_json(out / RECORD_FILE, KIND, SCHEMA)

    def _evidence(self):
        request = self.request
        reads = not isinstance(request.target, Schedule) and Asked.parse(request.by).reads
        return Evidence(self.sizes, neurons=request.neurons, scores=self.scores if reads else None, seed=request.seed)

    def _widths(self, evidence):
        request = self.request
        if isinstance(request.target, Schedule):
            return {"widths": fixed_widths(request.target, evidence.sizes), "schedule": request.target.to_json()}
        schedule = slice_widths(request.by, evidence, request.target, **request.width_options)
        return {"widths": schedule.widths, "schedule": schedule.to_json()}

    def _states(self, streamed):
        """Last states of the judged windows, of as many in a pass as the calibration has: the memory is for those."""
        batches = self.judged.tokens.split(len(self.calibration.tokens))
        with torch.no_grad(), streamed.loading(), streamed.outside():
            return torch.cat([last_states(streamed.model, tokens) for tokens in batches])

    @staticmethod
    def _errors(whole, sliced):
        parts = (sliced - whole).square().sum((1, 2)) / whole.square().sum((1, 2))
        return mean_and_error(parts.numpy())

    def _facts(self, widths, kept, model):
        before, after = self.sizes, sum(map(math.prod, folder_shapes(model).values()))
        written, source = (
            sum(path.stat().st_size for path in safetensors_files(folder)) for folder in (model, self.streamed.folder)
        )
        pairs = {
            "parameters": (before.parameters, after),
            "ffn_parameters": (before.cost.total(before.widths), before.cost.total(widths["widths"])),
            "bytes": (source, written),
        }
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "source": self.streamed.opened.source | {"name": self.name},
            "settings": self.request.to_json() | {"streamed": True},
            "text": {"calibration": self.calibration.settings, "judged": self.judged.settings},
            "layers": before.layers,
            "widths_before": before.widths,
            **widths,
            "kept": [ranges(layer) for layer in kept],
            **{name: {"whole": first, "sliced": second} for name, (first, second) in pairs.items()},
            "heal": None,
            "time": None,
            "notes": ["sliced block by block: neither losses nor times were taken"],
            "environment": records.environment(),
        }
