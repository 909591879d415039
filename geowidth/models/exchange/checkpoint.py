"""Checkpoints: a folder with config.json and safetensors. Read strictly: safetensors only, every tensor checked."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.models.exchange.shape import LlamaShape, stated_widths
from geowidth.models.storage import read_tensors

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Checkpoint:
    """A Llama-family model outside any framework.

    shape     LlamaShape
    tensors   {Hugging Face name: tensor}, exactly those of `shape.tensors()`
    files     {name: text} of the tokenizer's files
    where     what it was read from, for messages
    """

    shape: LlamaShape
    tensors: dict
    files: dict = field(default_factory=dict)
    where: str = "the model"

    def __post_init__(self):
        check_tensors(self.where, self.shape.tensors(), self.tensors)

    @property
    def dtype(self):
        return next(iter(self.tensors.values())).dtype

    def to(self, dtype):
        """The same with every tensor in `dtype`."""
        tensors = {name: tensor.to(dtype) for name, tensor in self.tensors.items()}
        return Checkpoint(self.shape, tensors, self.files, self.where)


def read_checkpoint(folder, infer_widths=False):
    """The Checkpoint in a Hugging Face folder.

    infer_widths   take the FFN widths from the tensors' shapes where config.json has one number for all layers; a
                   list of widths in config.json must agree with the shapes in any case
    """
    folder = Path(folder)
    config = read_config(folder)
    where = str(folder / "config.json")
    tensors = read_folder_tensors(folder)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    widths = stated_widths(config, where)
    if infer_widths and not {"intermediate_sizes", "block_configs"} & set(config):
        widths = widths_of(tensors, folder)
        config = {**config, "num_hidden_layers": len(widths)}
    shape = LlamaShape.from_config(config, where, widths)
    _fill_empty_layers(shape, tensors)
    if shape.tied and "lm_head.weight" in tensors:
        _drop_tied_head(folder, tensors)
    return Checkpoint(shape, tensors, tokenizer_files(folder), str(folder))


def read_config(folder):
    """config.json of a folder as a dict. A run folder, and a training of ours that is not finished, are told apart."""
    path = Path(folder) / "config.json"
    if (inside := next(iter(sorted((Path(folder) / "arms").glob("*/seed-*"))), None)) is not None:
        raise UserError(f"{folder} is a run folder; name one of its models, such as {inside}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; a model folder needs one") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} holds a {type(config).__name__}; a JSON object is needed")
    if config.get("kind") == "geowidth.training":
        raise UserError(f"the training in {folder} is not finished; run its command again to finish it")
    return config


def safetensors_files(folder):
    """Paths of the safetensors files of a folder; only pickled weights, or none, are refused by name."""
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(records.read_json(index).get("weight_map", {}).values()))
        bad = [name for name in names if Path(name).name != name]
        if bad:
            raise UserError(f"{index} names {bad[0]!r}; only files of its own folder are read")
        return [folder / name for name in names]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLED) if folder.is_dir() else []
    if pickled:
        raise UserError(
            f"{folder / pickled[0]} is pickled, and unpickling runs whatever code it holds; convert it to safetensors"
        )
    raise UserError(f"{folder} holds no model.safetensors")


def read_folder_tensors(folder):
    """{name: tensor} of all safetensors files of a folder."""
    tensors = {}
    for path in safetensors_files(folder):
        part, _ = read_tensors(path)
        twice = sorted(set(part) & set(tensors))
        if twice:
            raise UserError(f"{path}: tensor {twice[0]} is in another file of the folder as well")
        tensors |= part
    return tensors


def tokenizer_files(folder):
    """{name: text} of the tokenizer's files in a folder."""
    folder = Path(folder)
    return {name: (folder / name).read_text(encoding="utf-8") for name in TOKENIZER_FILES if (folder / name).is_file()}


def widths_of(tensors, where="the checkpoint"):
    """FFN widths by the shapes of the gate projections, layer by layer."""
    found = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.gate_proj\.weight", name)
        if match:
            found[int(match[1])] = tensor.shape[0]
    missing = sorted(set(range(max(found, default=-1) + 1)) - set(found))
    if missing or not found:
        layer = missing[0] if missing else 0
        raise UserError(f"{where}: tensor model.layers.{layer}.mlp.gate_proj.weight is missing; widths come from it")
    return [found[layer] for layer in range(len(found))]


def check_tensors(where, shapes, tensors):
    """Raise a UserError that names the first tensor that is missing, extra, wrongly shaped or not finite."""
    for name, shape in shapes.items():
        if name not in tensors:
            raise UserError(f"{where}: tensor {name} is missing; expected shape {list(shape)}")
        found = tuple(tensors[name].shape)
        if found != tuple(shape):
            raise UserError(f"{where}: tensor {name} has shape {list(found)}; expected {list(shape)}")
    for name, tensor in tensors.items():
        if name not in shapes:
            raise UserError(f"{where}: tensor {name} of shape {list(tensor.shape)} belongs to no part of this model")
        if not tensor.dtype.is_floating_point:
            raise UserError(f"{where}: tensor {name} is {tensor.dtype}; expected a floating dtype")
        if not all_finite(tensor):
            raise UserError(f"{where}: tensor {name} holds {_first_bad(tensor)}; expected finite numbers")


def all_finite(tensor):
    """Whether every element is finite: the extremes of what holds a NaN are NaN. One pass, no mask."""
    return not tensor.numel() or bool(torch.isfinite(torch.stack(tensor.aminmax())).all())


def _first_bad(tensor):
    flat = tensor.flatten()
    index = int(torch.nonzero(~torch.isfinite(flat))[0])
    return f"{flat[index].item()} at element {index}"


def _fill_empty_layers(shape, tensors):
    """An FFN of width 0 and its norm may be left out of a file; what stands for them here adds nothing."""
    dtype = next(iter(tensors.values())).dtype if tensors else torch.float32
    for layer, width in enumerate(shape.widths):
        if width == 0:
            nothing = torch.zeros(0, shape.dimension, dtype=dtype)
            parts = {"post_attention_layernorm": torch.ones(shape.dimension, dtype=dtype), "mlp.down_proj": nothing.T}
            for name, tensor in {**parts, "mlp.gate_proj": nothing, "mlp.up_proj": nothing}.items():
                tensors.setdefault(f"model.layers.{layer}.{name}.weight", tensor)


def _drop_tied_head(folder, tensors):
    head, embedding = tensors.pop("lm_head.weight"), tensors.get("model.embed_tokens.weight")
    if embedding is not None and not torch.equal(head, embedding):
        raise UserError(
            f"{folder}: config.json ties the output matrix to the embedding, but lm_head.weight differs from "
            "model.embed_tokens.weight"
        )
