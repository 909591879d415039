"""Models that are larger than the memory: a Hugging Face folder sliced with one block's weights in memory at a time.

The model stands on the meta device. A block's weights are read when the pass comes to it, are sliced and corrected in
the pass like any other model's (geowidth.slicing.apply), are written to a shard of their own, and are dropped. What
stays in memory is the embedding, one block in float32, the states of the calibration tokens, and what the correction
takes. A shard that is there already, of the same request, is read in place of the block's weights: a stopped work goes
on.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from geowidth import memory
from geowidth.cascade.held_out import HeldOut
from geowidth.errors import UserError, choose
from geowidth.exchange.checkpoint import (
    read_config,
    safetensors_files,
    tensor_shapes,
    tokenizer_files,
    write_files,
)
from geowidth.exchange.folders import check_free
from geowidth.exchange.formats import write_config, write_untrained_hf
from geowidth.exchange.library import empty_model
from geowidth.exchange.remote_code import CLASSES
from geowidth.exchange.shape import TAPERED
from geowidth.files import PathLike
from geowidth.measure.opening import OpenedModel, tokenizer_of
from geowidth.slicing.apply import (
    RIDGES,
    SliceReport,
    bytes_needed,
    check_kept,
    check_text,
    checked_ridges,
    cut,
    one_pass,
)
from geowidth.slicing.correction import Correction
from geowidth.slicing.ffns import FFN, FFNs, ffns_of
from geowidth.slicing.scores import NEURON_RULES, neuron_scores
from geowidth.slicing.shards import REQUEST, Shards

PREFIX = "model."  # of a backbone's tensors in the files of its language model


class StreamedModel:
    """A Hugging Face folder of a type that geowidth.exchange.remote_code has, its blocks loaded one at a time.

    folder   config.json and safetensors, one file or shards. Raises UserError for other models, quantised ones, tensors
             that are missing, and models with tables that cannot be computed
    ffns     its FFNs; widths, and scores in `self.scores`, as of a model in memory
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder = Path(folder)
        self.config = read_config(self.folder)
        kind = str(self.config.get("model_type"))
        choose(f"{folder}: model_type of a model that is streamed", kind.removeprefix(TAPERED), list(CLASSES))
        self.model, self.shapes = empty_model(self.folder, self.config)
        found = ffns_of(self.model)
        self.blocks = found.family.blocks(self.model)
        self.files = {name: path for path in safetensors_files(self.folder) for name in tensor_shapes(path)}
        paths = {id(module): path for path, module in self.model.named_modules()}
        self.paths = [paths[id(block)] for block in self.blocks]
        self.room: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}
        self._check_names()
        self.ffns = FFNs(self.model, found.family, [_StreamedFFN(ffn, self) for ffn in found])
        self._rebuild_tables()

    @cached_property
    def opened(self) -> OpenedModel:
        """What text is drawn with; its model has no weights."""
        source = {"name": str(self.folder), "model_type": self.config.get("model_type")}
        return OpenedModel(self.model, source, **tokenizer_of(self.folder))

    def scores(self, text: HeldOut | None, rule: str = "activation", seed: int = 0) -> list[np.ndarray]:
        """`neuron_scores`, of one pass with all windows together; rules that need a gradient are refused."""
        if NEURON_RULES[rule].gradients:
            able = ", ".join(name for name, one in NEURON_RULES.items() if not one.gradients)
            raise UserError(f"neuron rule {rule} needs gradients of the whole model in memory; streamed: {able}")
        with self.loading(), self.outside():
            return neuron_scores(self.ffns, text, rule, batch=None if text is None else len(text.tokens), seed=seed)

    def bytes(self, tokens: int) -> int:
        """Bytes that slicing takes at its peak, with a text of so many tokens."""
        sizes = [sum(p.numel() for p in block.parameters()) for block in self.blocks]
        outside = sum(p.numel() for p in self.model.parameters()) - sum(sizes)
        return 4 * (outside + 2 * max(sizes)) + bytes_needed(max(self.ffns.widths), self.ffns.dimension, tokens)

    @contextlib.contextmanager
    def loading(self, shards: Shards | None = None) -> Iterator[None]:
        """Inside, a block's weights are there while it runs. shards: where they are written to, once it has run."""
        handles = []
        for layer, block in enumerate(self.blocks):
            handles.append(block.register_forward_pre_hook(lambda *_, layer=layer: self.load(layer, shards)))
            handles.append(block.register_forward_hook(lambda *_, layer=layer: self.free(layer, shards)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for block in self.blocks:
                _drop(block)
            self.room.clear()

    def load(self, layer: int, shards: Shards | None = None) -> None:
        """Read a block's weights, from its shard if that is there."""
        if shards is not None and shards.has(layer):
            values = {name.removeprefix(self.stored(layer)): tensor for name, tensor in shards.read(layer).items()}
        else:
            names = [name for name, _ in self.blocks[layer].named_parameters()]
            values = self._read({name: self.stored(layer, name) for name in names}, cast=False)
            values = {name: self._in_room(name, tensor) for name, tensor in values.items()}
        for name, tensor in values.items():
            _put(self.blocks[layer], name, tensor)

    def _in_room(self, name, tensor):
        """A tensor in float32, in room that the next block's tensor of this name takes again: memory that is given back
        piece by piece is not found again whole."""
        key = name, tuple(tensor.shape)
        if key not in self.room:
            self.room[key] = torch.empty(tensor.shape, dtype=torch.float32)
        return self.room[key].copy_(tensor)

    def free(self, layer: int, shards: Shards | None = None) -> None:
        """Write a block's weights to a shard, if it is not there, and drop them."""
        if shards is not None and not shards.has(layer):
            shards.write(layer, self.tensors(layer))
        _drop(self.blocks[layer])

    def tensors(self, layer: int) -> dict[str, torch.Tensor]:
        """{name in the files: tensor} of a block as it is now, in the dtypes of the files."""
        kinds = self._read({n: self.stored(layer, n) for n, _ in self.blocks[layer].named_parameters()}, cast=False)
        return {
            self.stored(layer, name): parameter.detach().to(kinds[name].dtype).contiguous()
            for name, parameter in self.blocks[layer].named_parameters()
        }

    def stored(self, layer: int, name: str = "") -> str:
        """The name that a block's tensor has in the files."""
        return f"{self.prefix}{self.paths[layer]}.{name}"

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Inside, what belongs to no block has its weights."""
        names = [name for name, _ in self.model.named_parameters() if not self._in_block(name)]
        for name, tensor in self._read({name: self.prefix + name for name in names}).items():
            _put(self.model, name, tensor)
        try:
            yield
        finally:
            _drop(self.model)

    def _in_block(self, name):
        return any(name.startswith(f"{path}.") for path in self.paths)

    def _read(self, names, cast=True):
        """{key: tensor in float32, or as it is} of {key: name in the files}."""
        from safetensors import safe_open

        found: dict[str, torch.Tensor] = {}
        by_file: dict[Path, list[tuple[str, str]]] = {}
        for key, name in names.items():
            by_file.setdefault(self.files[name], []).append((key, name))
        for path, wanted in by_file.items():
            with safe_open(path, "pt") as file:
                for key, name in wanted:
                    tensor = file.get_tensor(name)
                    found[key] = tensor.to(torch.float32, copy=True) if cast else tensor
        return found

    def _check_names(self):
        """Every parameter must be in the files, in its shape and under its name, with the prefix or without."""
        wanted = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        self.prefix = PREFIX if PREFIX + next(iter(wanted)) in self.shapes else ""
        for name, shape in wanted.items():
            stored = self.shapes.get(self.prefix + name)
            if stored != shape:
                came = "is missing" if stored is None else f"has shape {list(stored)}; expected {list(shape)}"
                raise UserError(f"{self.folder}: tensor {self.prefix}{name} {came}; it cannot be streamed")

    def _rebuild_tables(self):
        """Rotary tables and Gemma's scale of the embedding are computed, not stored: on the meta device they have to be
        made again."""
        for path, module in list(self.model.named_modules()):
            if not any(buffer.is_meta for buffer in module.buffers(recurse=False)):
                continue
            if isinstance(scale := getattr(module, "scalar_embed_scale", None), float):
                module.register_buffer("embed_scale", torch.tensor(scale), persistent=False)
                continue
            if not type(module).__name__.endswith("RotaryEmbedding"):
                raise UserError(
                    f"{self.folder}: {path} of a {type(self.model).__name__} holds tables that are not in the files; "
                    "it cannot be streamed: slice it in memory"
                )
            self.model.set_submodule(path, type(module)(self.model.config))


class _StreamedFFN(FFN):
    """An FFN whose weights are read for the moment in which their norms are asked for."""

    def __init__(self, ffn: FFN, source: StreamedModel) -> None:
        super().__init__(ffn.layer, ffn.name, ffn.rows, ffn.down, ffn.bias)
        self.source = source

    def column_norms(self) -> torch.Tensor:
        with self._there():
            return super().column_norms()

    def row_norms(self) -> torch.Tensor:
        with self._there():
            return super().row_norms()

    @contextlib.contextmanager
    def _there(self):
        self.source.load(self.layer)
        yield
        _drop(self.source.blocks[self.layer])


def _put(module, name, tensor):
    path, _, last = name.rpartition(".")
    setattr(module.get_submodule(path), last, nn.Parameter(tensor.to(torch.float32), requires_grad=False))


def _drop(module):
    """Leave a module's parameters without data."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if not parameter.is_meta:
                setattr(part, name, nn.Parameter(parameter.detach().to("meta"), requires_grad=False))


def slice_streaming(
    streamed: StreamedModel,
    kept: Sequence[torch.Tensor],
    out: PathLike,
    calibration: HeldOut | None = None,
    *,
    ridge: float | Sequence[float] | None = RIDGES,
) -> SliceReport:
    """Write the model with the neurons `kept` alone to the folder `out`, one block in memory at a time.

    The arguments and what is done are those of `slice_in_place`, but for a bias, for which most such models have no
    place. The result is a checkpoint of the family where all widths are equal, else one with a width for every layer
    (trust_remote_code); its tensors have the dtypes of the source. Stopped and called again with the same arguments, it
    goes on where it was.
    """
    out = Path(out)
    check_free(out)
    check_kept(streamed.ffns, kept)
    if layer := next((i + 1 for i, indices in enumerate(kept) if not len(indices)), None):
        raise UserError(f"layer {layer - 1} would keep no neuron; a model that is streamed keeps 1 or more in each")
    ridges = checked_ridges(ridge)
    changed = [ffn.layer for ffn, indices in zip(streamed.ffns, kept, strict=True) if len(indices) < ffn.width]
    corrects = calibration is not None and bool(changed) and bool(ridges)
    tokens = calibration.tokens.numel() if calibration is not None and corrects else 0
    if calibration is not None and corrects:
        check_text(streamed.ffns, kept, calibration, ridges)
    memory.check("slicing block by block", streamed.bytes(tokens), "give fewer calibration windows")
    folder = out.with_name(f".{out.name}.slicing")
    shards = Shards(folder, len(kept), _request(streamed, kept, calibration, ridges))
    if calibration is not None and corrects and not shards.has(max(changed)):
        with streamed.loading(shards), streamed.outside():
            one_pass(streamed.ffns, kept, calibration, ridges, False, "slice", shards.reports)
            streamed.free(max(changed), shards)  # at which the pass has ended
    for layer, indices in enumerate(kept):
        if not shards.has(layer):
            streamed.load(layer)
            shards.reports[layer] = cut(streamed.ffns[layer], indices, Correction())
            streamed.free(layer, shards)
    _finish(streamed, shards, kept, out)
    layers = tuple(shards.reports[layer] for layer in range(len(kept)))
    return SliceReport(layers, None if calibration is None else calibration.settings)


def _request(streamed, kept, calibration, ridges):
    """What a work that goes on must agree in."""
    digest = hashlib.sha256()
    for tensor in (*kept, *(() if calibration is None else (calibration.tokens,))):
        digest.update(tensor.numpy().tobytes() + b"/")
    facts = {str(path.name): path.stat().st_size for path in sorted(set(streamed.files.values()))}
    return {
        "source": str(streamed.folder.resolve()),
        "files": facts,
        "ridges": list(ridges),
        "text": digest.hexdigest(),
    }


def _finish(streamed, shards, kept, out):
    """What stands beside the blocks, and the folder's last name."""
    names = [name for name in streamed.files if not any(name.startswith(streamed.stored(i)) for i in range(len(kept)))]
    shards.write_outside(streamed._read({name: name for name in names}, cast=False))
    config, widths = streamed.config, [len(indices) for indices in kept]
    if len(set(widths)) == 1 and not str(config["model_type"]).startswith(TAPERED):
        write_config(shards.folder, {**config, "intermediate_size": widths[0]})
    else:
        write_untrained_hf(config, widths, shards.folder, str(streamed.folder))
    write_files(shards.folder, tokenizer_files(streamed.folder))
    if out.is_dir():
        out.rmdir()
    os.replace(shards.folder, out)
    (out / REQUEST).unlink()
