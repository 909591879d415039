"""A sliced model as the checkpoint it came from, but for its FFNs: same names, same config, same tokenizer.

Where widths are equal the result is a stock model of its family. Where they differ it is, by family:

  ours                                          model.json with its widths, as ever
  Llama's and those with a modelling file       the `hf` form of `geowidth export`: one width a layer, trust_remote_code
  all others                                    the stock model, FFNs padded with zeros to the widest: same logits, and
                                                no memory or time saved beyond the widest
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from geowidth.errors import UserError
from geowidth.exchange.carried import FORMAT_FIELDS, SOURCE_CONFIG, read_source
from geowidth.exchange.checkpoint import (
    Checkpoint,
    fill_empty_layers,
    read_checkpoint,
    read_config,
    read_folder_tensors,
    tokenizer_files,
    write_files,
)
from geowidth.exchange.convert import checkpoint_from, model_from
from geowidth.exchange.fields import DEFAULTS
from geowidth.exchange.formats import write_config, write_hf, write_hf_padded, write_tapered_config, write_weights
from geowidth.exchange.library import library_model
from geowidth.exchange.remote_code import CLASSES
from geowidth.exchange.shape import TAPERED, LlamaShape
from geowidth.models import TaperedTransformer
from geowidth.models.storage import CONFIG_FILE, TENSOR_FILE, load_model, save_parameters
from geowidth.records import write_json
from geowidth.tensors import read_tensors

# What configs call the FFN width, by model_type; all others say intermediate_size.
WIDTH_FIELDS = {"gpt2": "n_inner", "opt": "ffn_dim", "distilbert": "hidden_dim"}
Tensors = dict[str, torch.Tensor]


def write_sliced(
    source: Path, model: torch.nn.Module, widths: Sequence[int], folder: Path, dtype: torch.dtype | None = None
) -> list[str]:
    """Write `model`, opened from the folder `source` and sliced to `widths`, to `folder`; sentences for the user.

    dtype: of all weights (None: each tensor has that of its source). Raises UserError for a form that cannot be said.
    """
    widths = tuple(int(width) for width in widths)
    folder.mkdir(parents=True, exist_ok=True)
    if (source / CONFIG_FILE).is_file():
        return _write_own(source, model, widths, folder, dtype)
    if isinstance(model, TaperedTransformer):  # an export of ours, opened as our own model
        own = _own(model, widths, _one_dtype(read_folder_tensors(source)) if dtype is None else dtype)
        return _write_llama(checkpoint_from(own, tokenizer_files(source), str(source), read_config(source)), folder)
    return _write_library(source, model, widths, folder, dtype)


def only_pads(source: Path) -> bool:
    """Whether a model of the folder `source` with widths that differ is written with FFNs padded to the widest."""
    if (source / CONFIG_FILE).is_file():
        return False
    kind = str(read_config(source).get("model_type")).removeprefix(TAPERED)
    return kind not in DEFAULTS and kind not in CLASSES


def _write_own(source, model, widths, folder, dtype):
    own = _own(model, widths, _one_dtype(read_tensors(source / TENSOR_FILE)[0]) if dtype is None else dtype)
    save_parameters(own.state_dict(), own.config, folder)
    if (carried := read_source(source)) is not None:
        write_json(folder / SOURCE_CONFIG, carried)
    write_files(folder, tokenizer_files(source))
    return []


def _own(model, widths, dtype):
    """A TaperedTransformer of those widths, in `dtype`, with the parameters of the sliced one."""
    state = {name: tensor.detach().cpu().to(dtype) for name, tensor in model.state_dict().items()}
    built = TaperedTransformer(replace(model.config, widths=widths), seed=None).to(dtype)
    built.load_state_dict(state)
    return built.eval()


def _one_dtype(tensors):
    """The narrowest dtype that holds every tensor exactly."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))


def _write_library(source, model, widths, folder, dtype):
    """A model of transformers: the tensors of its files, with those of the sliced one in their place."""
    config, files = read_config(source), tokenizer_files(source)
    stored = read_folder_tensors(source)
    tensors = replaced(stored, model, str(source), dtype)
    kind = str(config.get("model_type")).removeprefix(TAPERED)
    if dtype is not None:
        config = {**config, "dtype": str(dtype).removeprefix("torch.")}
        config.pop("torch_dtype", None)
    if kind in DEFAULTS:
        return _write_llama(_checkpoint(source, config, widths, tensors, files), folder)
    stock = {name: value for name, value in config.items() if name not in FORMAT_FIELDS or name == "architectures"}
    stock["model_type"] = kind
    if kind in CLASSES:
        stock["architectures"] = [CLASSES[kind][1]]
    if kind in CLASSES and len(set(widths)) > 1:
        write_tapered_config(folder, kind, {**stock, "intermediate_size": max(widths)}, widths)
        write_weights(folder, tensors, files)
        return [_remote(folder)]
    write_config(folder, _with_width(stock, kind, max(widths)))
    write_weights(folder, tensors if len(set(widths)) == 1 else padded_like(tensors, stored, widths), files)
    return _padding_words(widths, kind)


def _checkpoint(source, config, widths, tensors, files):
    """The Checkpoint of a Llama family's tensors; a bias of the down-projection brings those of gate and up."""
    down = "model.layers.{}.mlp.down_proj.bias"
    if down.format(0) in tensors and not config.get("mlp_bias"):
        config = {**config, "mlp_bias": True}
        for layer, width in enumerate(widths):
            zeros = tensors[down.format(layer)].new_zeros(width)
            for name in ("gate", "up"):
                tensors[f"model.layers.{layer}.mlp.{name}_proj.bias"] = zeros.clone()
    shape = LlamaShape.from_config(config, str(source), widths)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    if shape.tied:
        tensors.pop("lm_head.weight", None)
    fill_empty_layers(shape, tensors)
    return Checkpoint(shape, tensors, files, str(source), config)


def _write_llama(checkpoint, folder):
    """The stock form where it can say all, else one width a layer."""
    shape = checkpoint.shape
    if len(set(shape.widths)) == 1 and shape.layer_heads is None and shape.gated:
        write_hf_padded(checkpoint, folder)
        return []
    write_hf(checkpoint, folder)
    return [_remote(folder)]


def _remote(folder):
    return f"load with AutoModelForCausalLM.from_pretrained({str(folder)!r}, trust_remote_code=True)"


def reopened(folder: Path, like: torch.nn.Module, causal: bool) -> torch.nn.Module:
    """The model in a folder that `write_sliced` wrote, of the kind of `like`: ours or the library's; float32, in
    evaluation mode. Two models of one kind can be timed against each other."""
    if not isinstance(like, TaperedTransformer):
        return library_model(folder, read_config(folder), causal)
    own = (folder / CONFIG_FILE).is_file()
    return (load_model(folder) if own else model_from(read_checkpoint(folder))).float()


def replaced(
    stored: Mapping[str, torch.Tensor], model: torch.nn.Module, where: str, dtype: torch.dtype | None = None
) -> Tensors:
    """The tensors of a model's files, every one that the model in memory has replaced by that; the others as they are.

    Names in files may lack the prefix of the backbone, or have one more. dtype: of all (None: that of the file's). A
    bias that the file lacks stands beside its weight. Raises UserError where a weight is in no file.
    """
    state, names = model.state_dict(), dict(model.named_parameters())
    places = {name: place for name in state if (place := file_name(name, stored)) is not None}
    seen = {state[name].data_ptr() for name in places}
    lost = [name for name in names if name not in places and state[name].data_ptr() not in seen]
    places |= _renamed(lost, state, [name for name in stored if name not in places.values()], stored)
    tensors = dict(stored)
    for name, place in places.items():
        tensors[place] = _as(state[name], stored[place].dtype if dtype is None else dtype)
    for name in lost:
        weight = places.get(name.removesuffix("bias") + "weight") if name.endswith(".bias") else None
        if weight is not None and name not in places:
            tensors[weight.removesuffix("weight") + "bias"] = _as(state[name], tensors[weight].dtype)
        elif name not in places:
            raise UserError(f"{where}: its files hold {name} under a name that is not known; it cannot be written back")
    return tensors if dtype is None else {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}


def _renamed(lost, state, free, stored):
    """{name: name in files} of what the library names otherwise, told by a shape that no other has that is left."""
    found = {}
    for name in lost:
        same = [other for other in lost if state[other].shape == state[name].shape]
        there = [other for other in free if stored[other].shape == state[name].shape]
        if len(same) == len(there) == 1:
            found[name] = there[0]
    return found


def _as(value, dtype):
    return value.detach().cpu().to(dtype).contiguous()


def file_name(name: str, stored: Mapping[str, Any]) -> str | None:
    """The name in files of a tensor of the model: the same, or with more or less in front; None where there is none."""
    if name in stored:
        return name
    found = [other for other in stored if other.endswith(f".{name}") or name.endswith(f".{other}")]
    return found[0] if len(found) == 1 else None


def padded_like(tensors: Tensors, stored: Mapping[str, torch.Tensor], widths: Sequence[int]) -> Tensors:
    """`tensors` with those axes that slicing shortened padded with zeros to the widest of `widths`."""
    widest = max(widths)
    return {name: _padded(tensor, stored.get(name), widest) for name, tensor in tensors.items()}


def _padded(tensor, before, widest):
    if before is None or before.shape == tensor.shape:
        return tensor
    for axis in range(tensor.ndim):
        if tensor.shape[axis] != before.shape[axis]:
            shape = [*tensor.shape[:axis], widest - tensor.shape[axis], *tensor.shape[axis + 1 :]]
            tensor = torch.cat([tensor, tensor.new_zeros(shape)], dim=axis)
    return tensor.contiguous()


def _with_width(config, kind, width):
    """A stock config.json with another FFN width; models of images and text state it for the text part."""
    name = WIDTH_FIELDS.get(kind, "intermediate_size")
    part = config.get("text_config")
    if isinstance(part, dict) and name in part:
        return {**config, "text_config": {**part, name: width}}
    return {**config, name: width}


def _padding_words(widths, kind):
    widest = max(widths)
    share = 1 - sum(widths) / (widest * len(widths))
    if not share:
        return []
    return [
        f"{kind} has no form with one FFN width a layer: every FFN is {widest} wide here, {share:.0%} of that zero "
        "padding, which costs memory and time"
    ]
