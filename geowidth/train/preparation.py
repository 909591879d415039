"""What is to be trained, checked before any work is done: folder, arm, model, settings, seed and corpus."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from geowidth import memory, records
from geowidth.artifacts.per_layer import per_layer
from geowidth.errors import UserError, seed_number
from geowidth.files import PathLike
from geowidth.models.config import ModelConfig
from geowidth.models.presets import Preset, preset_named
from geowidth.models.training import TrainingSettings
from geowidth.text.corpus import Corpus, load_corpus, windows
from geowidth.train import checkpoint
from geowidth.train.supervision import kept_logits
from geowidth.train.world import World


class Training:
    """One training, fully decided and checked: folder, arm, model config, settings, seed, corpus."""

    def __init__(
        self,
        preset: str,
        folder: Path,
        arm: str,
        model: ModelConfig,
        settings: TrainingSettings,
        seed: int,
        corpus: Corpus,
        initial_scales: tuple[float, ...] | None = None,
    ) -> None:
        self.preset, self.folder, self.arm, self.model = preset, folder, arm, model
        self.settings, self.seed, self.corpus, self.initial_scales = settings, seed, corpus, initial_scales

    def config(self, world: World | None = None) -> dict[str, Any]:
        """The content of config.json. world: where it is trained, if that is known here."""
        return {
            "kind": checkpoint.CONFIG_KIND,
            "schema": checkpoint.SCHEMA,
            "preset": self.preset,
            "arm": self.arm,
            "seed": self.seed,
            "model": self.model.to_json(),
            **self.scales(),
            "training": self.settings.to_json(),
            "corpus": self.corpus.to_json(),
            "environment": records.environment() | ({} if world is None else world.to_json()),
        }

    def scales(self) -> dict[str, Any]:
        """{"initial_scales"} where there are any: files of runs without them stay as they always were."""
        return {} if self.initial_scales is None else {"initial_scales": list(self.initial_scales)}


def prepare(
    preset: str | Preset,
    widths: Iterable[int] | None,
    seed: int,
    out: PathLike | None,
    *,
    steps: int | None = None,
    arm: str | None = None,
    corpus: Corpus | PathLike = "stdlib",
    initial_scales: Iterable[float] | None = None,
    copies: float = 1.0,
    writes: bool = True,
    **changes: Any,
) -> Training:
    """The checked Training of `train`'s arguments; raises UserError before any work is done.

    copies: how often this machine will hold the model. writes: whether this process is the one that writes the folder.
    """
    preset = preset_named(preset)
    if out is None:
        raise UserError("no folder was named for the run; give one (out=, or --out on the command line)")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot train in {folder}: it is a file; name a folder")
    if writes:
        records.check_writable(folder / checkpoint.RESULT_FILE)
    model = preset.with_widths(widths)
    model.check_memory("training a model", 4 * copies)  # its parameters, gradients and two moments
    settings = preset.with_training(steps=steps, **changes)
    check_batch_memory(model, settings)
    seed = seed_number("seed", seed)
    text = corpus if isinstance(corpus, Corpus) else load_corpus(corpus)
    check_corpus(text, model, settings)
    if arm is None:
        arm = "uniform" if len(set(model.widths)) == 1 and model.layer_heads is None else "custom"
    scales = None
    if initial_scales is not None:
        scales = tuple(per_layer("initial scale", list(initial_scales), model.layers, strict=True).tolist())
    return Training(preset.name, folder, str(arm), model, settings, seed, text, scales)


def check_corpus(text: Corpus, model: ModelConfig, settings: TrainingSettings) -> None:
    """Refuse a corpus too small for a window of the model, with ids it does not know, or without the ends of documents
    that a mask needs."""
    for name in ("train", "validation"):
        windows(text.split(name), model.context, 1)
    if text.vocabulary > model.vocabulary:
        raise UserError(
            f"corpus {text.source} has {text.vocabulary:,} token ids; the model knows {model.vocabulary:,}: give it as "
            f"many ([model] vocabulary = {text.vocabulary} in the file of a preset, or geowidth train --vocabulary)"
        )
    if settings.document_mask:
        text.documents(torch.zeros(1, 1, dtype=torch.int64))


def check_batch_memory(model: ModelConfig, settings: TrainingSettings) -> None:
    """Refuse a batch whose token ids, or a microbatch whose logits and their gradient, this machine has no room for."""
    batch, microbatch = settings.batch, min(settings.batch, settings.microbatch)
    ids = 2 * 8 * batch * (model.context + 1)  # where they lie and what they are, int64
    memory.check(f"a batch of {batch} sequences", ids, "use a smaller batch")
    logits = 2 * 4 * kept_logits(model, settings) * microbatch * model.context * model.vocabulary
    memory.check(f"a microbatch of {microbatch} sequences", logits, "use a smaller microbatch")
