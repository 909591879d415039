"""From a pretrained model to a narrower checkpoint: widths, neurons, correction, healing, judgement, record.

Nothing is overwritten: the result appears whole, by a rename, and every stage before is kept (geowidth.slicing.stages).
Rules and correction look at windows of the validation split of the text, healing at the training split, and the losses
are of windows of the test split, of the checkpoint as it was written and opened again.
"""

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geowidth import memory, records
from geowidth.artifacts.schedule import Schedule
from geowidth.cascade.held_out import HeldOut, draw_held_out, mean_and_error
from geowidth.devices import device_named
from geowidth.errors import UserError
from geowidth.exchange.checkpoint import read_config
from geowidth.exchange.fields import DEFAULTS
from geowidth.exchange.folders import aside_of, check_free, written_whole
from geowidth.exchange.shape import TAPERED
from geowidth.files import PathLike
from geowidth.measure.families import known_types
from geowidth.measure.opening import OpenedModel, converted, located, open_model
from geowidth.models.storage import CONFIG_FILE
from geowidth.progress import tell
from geowidth.slicing.apply import check_calibration, checked_ridges, slice_in_place
from geowidth.slicing.evidence import Evidence, Measures, Unmeasured
from geowidth.slicing.ffns import FFNs, ffns_of
from geowidth.slicing.healing import check_room_to_heal, forget, heal
from geowidth.slicing.judge import check_same, compared, judged_losses, ranges, sizes, state_errors, timed
from geowidth.slicing.request import CALIBRATION, JUDGED, KIND, RECORD_FILE, SCHEMA, TRAINING, SliceRequest
from geowidth.slicing.scores import NEURON_RULES, neuron_scores
from geowidth.slicing.selection import kept_neurons
from geowidth.slicing.stages import Stages, begun_with, fingerprint, folder_of, stages_of
from geowidth.slicing.streamed import slice_streamed, wants_streaming
from geowidth.slicing.targets import Parameters, Target, sizes_of
from geowidth.slicing.widths import fixed_widths, slice_widths
from geowidth.slicing.write import only_pads, reopened, write_sliced
from geowidth.text.corpus import Corpus, load_corpus


def slice_model(
    model: PathLike,
    out: PathLike,
    request: SliceRequest,
    *,
    download: bool = False,
    cache: PathLike | None = None,
    stream: bool | None = None,
    watch: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Slice a model into the new folder `out`; returns the record that stands there as slice.json.

    model      a folder by geowidth train, a Hugging Face folder or name, smollm2, minilm, a .gguf file
    request    what is asked for
    download   whether a Hugging Face name may be fetched. cache: folder for converted models
    stream     one block's weights in memory at a time (geowidth.slicing.streamed); None: as the call that is gone on
               with, or else where there is no other room
    watch      called with the name of every stage once it is kept

    A call that was stopped is gone on with by the same call. Raises UserError before any work for bad arguments and
    models that cannot be sliced, and where the written model does not compute what was sliced.
    """
    if (Path(out) / RECORD_FILE).is_file():  # what a kill between the last two steps left
        shutil.rmtree(folder_of(out), ignore_errors=True)
    check_free(out)
    where = device_named(request.device)
    path = located(model, download)
    folder = converted(path, cache) if path.suffix == ".gguf" else path
    if stream is None and (stream := begun_with(out, "streamed")) is None:
        stream = wants_streaming(folder)
    if stream:
        tell(f"{model} is sliced block by block: one block's weights are in memory at a time")
        return slice_streamed(folder, str(model), Path(out), request, watch)
    causal = predicts_tokens(folder)
    if not causal and request.healing is not None:
        raise UserError(f"{model} predicts no next token, and healing trains on that; leave --heal out")
    opened = open_model(model, download=download, cache=cache, causal=causal)
    opened.model.float().to(where)
    ffns = ffns_of(opened.model)
    job = Job(opened, folder, ffns, request, load_corpus(request.corpus), causal)
    job.check()
    settings = {"model": fingerprint(folder), "name": opened.source["name"], "corpus_digest": job.corpus.digest}
    with stages_of(out, settings | {"streamed": False} | request.to_json(), watch) as stages:
        return job.work(stages, Path(out))


def takes_biases(folder: Path) -> bool:
    """Whether a model without biases in its FFNs may get them: its config states whether there are."""
    if (folder / CONFIG_FILE).is_file():
        return False
    kind = str(read_config(folder).get("model_type")).removeprefix(TAPERED)
    return "mlp_bias" in DEFAULTS.get(kind, ())


def predicts_tokens(folder: Path) -> bool:
    """Whether the model in a folder is a causal one. An unknown kind counts as one: opening it says what is known."""
    if (folder / CONFIG_FILE).is_file():
        return True
    family = known_types().get(str(read_config(folder).get("model_type")).removeprefix(TAPERED))
    return family is None or family.causal


@dataclass(frozen=True)
class Job:
    """One slicing: the opened model, the folder it came from, its FFNs, what is asked for, and the text."""

    opened: OpenedModel
    folder: Path
    ffns: FFNs
    request: SliceRequest
    corpus: Corpus
    causal: bool

    def drawn(self, split: str, windows: int, fewer: bool = False) -> HeldOut:
        """Windows of a split; fewer: those there are, where there are fewer."""
        context, seed = self.request.context, self.request.seed
        return draw_held_out(self.opened, self.corpus, split, windows=windows, context=context, seed=seed, fewer=fewer)

    @cached_property
    def calibration(self) -> HeldOut:
        return self.drawn(CALIBRATION, self.request.calibration_windows)

    @cached_property
    def judged(self) -> HeldOut:
        return self.drawn(JUDGED, self.request.windows)

    def check(self) -> None:
        """Refuse now what would be refused after hours."""
        request = self.request
        if request.bias and not (self.ffns.biases or takes_biases(self.folder)):
            raise UserError(
                f"{self.opened.source['name']} has no place for a bias in its down-projections; leave --bias out"
            )
        if NEURON_RULES[request.neurons].gradients and not self.causal:
            raise UserError(
                f"neuron rule {request.neurons} needs next-token losses, and {self.opened.source['name']} gives none; "
                "take activation"
            )
        if not isinstance(request.target, Schedule):
            self.target.budget(sizes_of(self.ffns))
        try:
            widths = self._schedule(Unmeasured(self.ffns, self.calibration))["widths"]
        except Measures:  # any layer may keep nearly all
            widths = [width - 1 for width in self.ffns.widths]
            self._check_padding(request.max_distinct_widths == 1)
        else:
            self._check_padding(len(set(widths)) == 1)
        if request.correct and tuple(widths) != self.ffns.widths:
            kept = [torch.arange(width) for width in widths]
            check_calibration(self.ffns, kept, self.calibration, checked_ridges(request.ridge))
        size = sum(p.numel() * p.element_size() for p in self.opened.model.parameters())
        if request.device == "cpu":
            memory.check("a second copy of the model", size, "give --stream, which holds one layer at a time")
        if request.healing is not None:
            check_room_to_heal(self.opened.model)
        _ = self.judged

    def _check_padding(self, equal):
        """Refuse a number of parameters where the padding of widths that differ would go beyond it."""
        if isinstance(self.request.target, Parameters) and not equal and only_pads(self.folder):
            raise UserError(
                f"--parameters came with widths that differ, and {self.opened.source['name']} can only be written with "
                "all FFNs padded to the widest; give --max-distinct-widths 1, or --keep in place of --parameters"
            )

    def work(self, stages: Stages, out: Path) -> dict[str, Any]:
        """All stages, and the result moved to `out`; returns its record."""
        before = np.array(stages.json("whole", self._whole)["losses"])
        widths = stages.json("widths", lambda: self._schedule(self._evidence(stages)))
        kept = [torch.tensor(layer, dtype=torch.int64) for layer in stages.json("neurons", lambda: self._kept(widths))]
        if not stages.path("model").is_dir():
            self._write(stages, kept, before)
        facts = {"widths": widths["widths"], "schedule": widths["schedule"], "kept": [ranges(layer) for layer in kept]}
        record = self._facts() | facts | stages.json("judged", lambda: self._judged(stages, before))
        for name in ("correction", "heal", "notes"):
            path = stages.path(f"{name}.json")
            record[name] = records.read_json(path) if path.is_file() else None
        record["notes"] = [note.replace(str(aside_of(stages.path("model"))), str(out)) for note in record["notes"]]
        records.write_json(stages.path("model") / RECORD_FILE, record)
        if out.is_dir():
            out.rmdir()
        stages.path("model").rename(out)
        return records.read_json(out / RECORD_FILE, KIND, SCHEMA)

    def _facts(self):
        """What the record says beside what was found."""
        text = {"calibration": self.calibration.settings, "judged": self.judged.settings}
        facts: dict[str, Any] = {"source": self.opened.source, "settings": self.request.to_json(), "text": text}
        facts |= {"layers": len(self.ffns), "widths_before": self.ffns.widths}
        return {"kind": KIND, "schema": SCHEMA, **facts, "environment": records.environment()}

    def _whole(self):
        """Losses of the whole model; of one that predicts no next token there are none."""
        return {
            "losses": judged_losses(self.opened.model, self.judged, "loss of the whole model") if self.causal else ()
        }

    def _schedule(self, evidence):
        """{"widths", "schedule"}: how many neurons every layer keeps, and what decided."""
        request = self.request
        if isinstance(request.target, Schedule):
            return {"widths": fixed_widths(request.target, evidence.sizes), "schedule": request.target.to_json()}
        schedule = slice_widths(request.by, evidence, self.target, **request.width_options)
        return {"widths": schedule.widths, "schedule": schedule.to_json()}

    @property
    def target(self) -> Target:
        """The target, less the parameters of biases that are yet to be made."""
        target = self.request.target
        assert not isinstance(target, Schedule)
        if not isinstance(target, Parameters) or not self.request.bias or self.ffns.biases:
            return target
        return replace(target, added=len(self.ffns) * self.ffns.dimension + 2 * sum(self.ffns.widths))

    def _evidence(self, stages):
        return Evidence(
            self.ffns,
            self.calibration,
            self.request.neurons,
            kept_in=stages.path("measured"),
            seed=self.request.seed,
            skip=max(1, len(self.opened.prefix)),
            tail=len(self.opened.suffix),
        )

    def _kept(self, widths):
        """The neurons that stay, ascending, layer by layer."""
        scores = neuron_scores(self.ffns, self.calibration, self.request.neurons, seed=self.request.seed)
        return [layer.tolist() for layer in kept_neurons(scores, widths["widths"])]

    def _write(self, stages, kept, before):
        """Slice a copy of the model, heal it, and write it to the stage "model"."""
        student = copy.deepcopy(self.opened.model)
        ffns = ffns_of(student)
        self._slice(stages, ffns, kept)
        if (healing := self.request.healing) is not None:
            self._heal(stages, student, before, healing)
        dtype = None if self.request.dtype == "keep" else getattr(torch, self.request.dtype)

        def fill(folder):
            records.write_json(
                stages.path("notes.json"), write_sliced(self.folder, student, ffns.widths, folder, dtype)
            )
            check_same(student, self._opened_again(folder), self.judged)

        written_whole(stages.path("model"), fill)
        stages.done("model")

    def _slice(self, stages, ffns, kept):
        """Slice the copy, or put in what an earlier call made of it."""

        def make():
            request = self.request
            ridge = request.ridge if request.correct else None
            calibration = self.calibration if request.correct or request.bias else None
            report = slice_in_place(ffns, kept, calibration, ridge=ridge, bias=request.bias, label="slice")
            records.write_json(stages.path("correction.json"), report.to_json())
            self._add_missing_biases(ffns)
            return {f"{ffn.layer}/{n}": p for ffn in ffns for n, p in enumerate(ffn.parameters)}

        tensors = stages.tensors("sliced", make)
        for ffn, indices in zip(ffns, kept, strict=True):
            ffn.keep(indices)  # of one that is sliced already nothing is taken
        self._add_missing_biases(ffns)
        for ffn in ffns:
            for number, parameter in enumerate(ffn.parameters):
                parameter.data.copy_(tensors[f"{ffn.layer}/{number}"])
        ffns.state_widths()

    def _add_missing_biases(self, ffns):
        """Where biases are asked for, one of zeros for every FFN without: also for layers that keep all neurons."""
        for ffn in ffns:
            if self.request.bias and ffn.down is not None and not ffn.has_bias:
                ffn.add_bias(ffn.columns().new_zeros(ffns.dimension))

    def _heal(self, stages, student, before, healing):
        """Heal the copy, or put in what an earlier call made of it."""

        def make():
            text = self.drawn(TRAINING, healing.windows, fewer=True)
            sliced = stages.json("not-healed", lambda: {"losses": judged_losses(student, self.judged, "loss, sliced")})
            told = heal(
                student, text, healing, stages.path("healing"), teacher=self.opened.model, seed=self.request.seed
            )
            told |= {"text": text.settings, "without": compared(before, np.array(sliced["losses"]))}
            records.write_json(stages.path("heal.json"), told)
            return dict(student.named_parameters())

        tensors = stages.tensors("healed", make)
        forget(stages.path("healing"))
        for name, parameter in student.named_parameters():
            parameter.data.copy_(tensors[name])

    def _opened_again(self, folder):
        """The written model, as the source was opened: what is compared differs in its weights alone."""
        return reopened(folder, self.opened.model, self.causal).to(self.request.device)

    def _judged(self, stages, before):
        """Losses, parameters, time and memory of the written model beside the whole one's."""
        model, whole = self._opened_again(stages.path("model")), self.opened.model
        if self.causal:
            found = compared(before, judged_losses(model, self.judged, "loss of the sliced model"))
        else:
            found = {"states": mean_and_error(state_errors(whole, model, self.judged, "states"))}
        return found | sizes(self.ffns, model, stages.path("model")) | {"time": timed(whole, model, self.judged)}
