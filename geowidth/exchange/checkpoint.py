"""Checkpoints: a folder with config.json and safetensors. Read strictly: safetensors only, every tensor checked."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.exchange.shape import LlamaShape
from geowidth.files import PathLike
from geowidth.tensors import read_tensors

# What stands beside the weights and is carried unchanged, byte by byte.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
TEMPLATE_FOLDER = "additional_chat_templates"
BINARY = ("tokenizer.model",)
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WAY_OUT = "where FFN widths differ by layer, geowidth export --from-checkpoint {} takes them from the tensors"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Checkpoint:
    """A Llama-family model outside any framework.

    shape     LlamaShape
    tensors   {Hugging Face name: tensor}, exactly those of `shape.tensors()`
    files     {name: text, or bytes} of what stands beside the weights: the tokenizer's and generation's files
    where     what it was read from, for messages
    config    the config.json that the shape was read from, whole, or None for a model that came without one
    """

    shape: LlamaShape
    tensors: dict[str, torch.Tensor]
    files: dict[str, str | bytes] = field(default_factory=dict)
    where: str = "the model"
    config: dict[str, Any] | None = None

    def __post_init__(self):
        check_shapes(self.where, self.shape.tensors(), {name: t.shape for name, t in self.tensors.items()})
        check_values(self.where, self.tensors)

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest dtype that holds every tensor exactly."""
        return reduce(torch.promote_types, (tensor.dtype for tensor in self.tensors.values()))

    def to(self, dtype: torch.dtype) -> "Checkpoint":
        """The same with every tensor in `dtype`, which its config then states."""
        tensors = {name: tensor.to(dtype) for name, tensor in self.tensors.items()}
        if self.config is None:
            return replace(self, tensors=tensors)
        stated = [name for name in ("dtype", "torch_dtype") if name in self.config] or ["dtype"]
        named: dict[str, str] = dict.fromkeys(stated, str(dtype).removeprefix("torch."))
        return replace(self, tensors=tensors, config={**self.config, **named})


def read_checkpoint(folder: PathLike, infer_widths: bool = False) -> Checkpoint:
    """The Checkpoint in a Hugging Face folder.

    infer_widths   take the FFN widths from the tensors' shapes where config.json has one number for all layers; a
                   list of widths in config.json must agree with the shapes in any case
    """
    folder = Path(folder)
    config = read_config(folder)
    where = str(folder / "config.json")
    found = {name: shape for name, shape in folder_shapes(folder).items() if _is_weight(name)}
    check_layers(config, found, folder)
    listed = {"intermediate_sizes", "block_configs"} & set(config)
    widths = None
    if infer_widths and not listed:
        widths = widths_of(found, folder)
        config = {**config, "num_hidden_layers": len(widths)}
    shape = LlamaShape.from_config(config, where, widths)
    wanted = {name: size for name, size in shape.tensors().items() if name in found or not of_empty_layer(name, shape)}
    if shape.tied:
        found.pop("lm_head.weight", None)
    check_shapes(str(folder), wanted, found, "" if listed else f"; {WAY_OUT.format(folder)}")
    tensors = {name: tensor for name, tensor in read_folder_tensors(folder).items() if _is_weight(name)}
    fill_empty_layers(shape, tensors)
    if shape.tied and "lm_head.weight" in tensors:
        _drop_tied_head(folder, tensors)
    return Checkpoint(shape, tensors, tokenizer_files(folder), str(folder), config)


def _is_weight(name):
    return not name.endswith("rotary_emb.inv_freq")


def read_config(folder: PathLike) -> dict[str, Any]:
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


def safetensors_files(folder: PathLike) -> list[Path]:
    """Paths of the safetensors files of a folder; only pickled weights, or none, are refused by name."""
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in _indexed(index)]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLED) if folder.is_dir() else []
    if pickled:
        raise UserError(
            f"{folder / pickled[0]} is pickled, and unpickling runs whatever code it holds; convert it to safetensors"
        )
    raise UserError(f"{folder} holds no model.safetensors")


def read_folder_tensors(folder: PathLike) -> dict[str, torch.Tensor]:
    """{name: tensor} of all safetensors files of a folder."""
    tensors: dict[str, torch.Tensor] = {}
    for path in safetensors_files(folder):
        part, _ = read_tensors(path)
        twice = sorted(set(part) & set(tensors))
        if twice:
            raise UserError(f"{path}: tensor {twice[0]} is in another file of the folder as well")
        tensors |= part
    return tensors


def _indexed(index):
    """The file names in an index of shards, sorted, each once."""
    value = records.read_json(index)
    names = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{index} is no index of shards: its weight_map must give a file name for each tensor")
    bad = next((name for name in names.values() if Path(name).name != name or not name.endswith(".safetensors")), None)
    if bad is not None:
        raise UserError(f"{index} names {bad!r}; only files of its own folder are read, safetensors ones")
    return sorted(set(names.values()))


def folder_shapes(folder: PathLike) -> dict[str, tuple[int, ...]]:
    """{name: shape} of all tensors of a folder, from the headers of its files alone."""
    return {name: shape for path in safetensors_files(folder) for name, shape in tensor_shapes(path).items()}


def tensor_shapes(path: PathLike) -> dict[str, tuple[int, ...]]:
    """{name: shape} of a safetensors file, whose tensors are left alone."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise UserError(f"{path} does not exist")
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error})") from error


def check_layers(config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], folder: PathLike) -> None:
    """Raise a UserError where config.json states more layers than the files hold: a config is free to claim any."""
    stated = config.get("num_hidden_layers")
    layers = {int(found[1]) for name in shapes if (found := re.search(r"(?:^|\.)layers\.(\d{1,9})\.", name))}
    if layers and isinstance(stated, int) and stated > max(layers) + 1:
        raise UserError(f"{folder}: config.json states {stated} layers; the files hold {max(layers) + 1}")


def tokenizer_files(folder: PathLike) -> dict[str, str | bytes]:
    """{name: text, or bytes} of what stands beside the weights in a folder: the tokenizer's and generation's files."""
    folder = Path(folder)
    templates = sorted(path.name for path in (folder / TEMPLATE_FOLDER).glob("*.jinja"))
    names = [*TOKENIZER_FILES, *(f"{TEMPLATE_FOLDER}/{name}" for name in templates)]
    return {name: _content(folder / name) for name in names if (folder / name).is_file()}


def _content(path):
    try:
        content = path.read_bytes()  # not as text, which would change the ends of lines
        return content if path.name in BINARY else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no UTF-8 text ({error.reason} at byte {error.start}); mend or remove it") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def write_files(folder: PathLike, files: Mapping[str, str | bytes]) -> None:
    """Write {name: text, or bytes} to a folder, as `tokenizer_files` read them."""
    for name, content in files.items():
        records.write_bytes(Path(folder) / name, content.encode("utf-8") if isinstance(content, str) else content)


def widths_of(shapes: Mapping[str, tuple[int, ...]], where: PathLike = "the checkpoint") -> list[int]:
    """FFN widths by the shapes {name: shape} of the gate projections, layer by layer."""
    found = {}
    for name, shape in shapes.items():
        match = re.fullmatch(r"model\.layers\.(\d{1,9})\.mlp\.gate_proj\.weight", name)
        if match and len(shape) == 2:
            found[int(match[1])] = shape[0]
    layer = next(layer for layer in range(len(found) + 1) if layer not in found)
    if layer < max(found, default=0) or not found:
        raise UserError(f"{where}: tensor model.layers.{layer}.mlp.gate_proj.weight is missing; widths come from it")
    return [found[layer] for layer in range(len(found))]


def check_shapes(
    where: str, wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], advice: str = ""
) -> None:
    """Raise a UserError that names the first tensor that is missing, wrongly shaped or extra.

    wanted, found   {name: shape}
    advice          said after a wrong shape in an FFN
    """
    for name, shape in wanted.items():
        if name not in found:
            raise UserError(f"{where}: tensor {name} is missing; expected shape {list(shape)}")
        if tuple(found[name]) != tuple(shape):
            more = advice if ".mlp." in name else ""
            raise UserError(f"{where}: tensor {name} has shape {list(found[name])}; expected {list(shape)}{more}")
    extra = next((name for name in found if name not in wanted), None)
    if extra is not None:
        raise UserError(f"{where}: tensor {extra} of shape {list(found[extra])} belongs to no part of this model")


def check_values(where: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise a UserError that names the first tensor that is not of DTYPES, or holds what is not finite."""
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise UserError(f"{where}: tensor {name} is {tensor.dtype}; allowed: {', '.join(map(str, DTYPES))}")
        if not all_finite(tensor):
            raise UserError(f"{where}: tensor {name} holds {_first_bad(tensor)}; expected finite numbers")


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether every element is finite: the extremes of what holds a NaN are NaN. One pass, no mask."""
    return not tensor.numel() or bool(torch.isfinite(torch.stack(tensor.aminmax())).all())


def _first_bad(tensor):
    flat = tensor.flatten()
    index = int(torch.nonzero(~torch.isfinite(flat))[0])
    return f"{flat[index].item()} at element {index}"


def of_empty_layer(name: str, shape: LlamaShape) -> bool:
    """Whether a tensor belongs to an FFN of width 0 or to its norm, which may be left out of a file."""
    found = re.match(r"model\.layers\.(\d+)\.(?:mlp|post_attention_layernorm)\.", name)
    return found is not None and shape.widths[int(found[1])] == 0


def fill_empty_layers(shape: LlamaShape, tensors: dict[str, torch.Tensor]) -> None:
    """An FFN of width 0 and its norm may be left out of a file; what stands for them here adds nothing."""
    dtype = next(iter(tensors.values())).dtype if tensors else torch.float32
    for name, size in shape.tensors().items() if 0 in shape.widths else ():
        if of_empty_layer(name, shape):
            value = torch.ones if "norm" in name else torch.zeros
            tensors.setdefault(name, value(size, dtype=dtype))


def _drop_tied_head(folder, tensors):
    head, embedding = tensors.pop("lm_head.weight"), tensors.get("model.embed_tokens.weight")
    if embedding is not None and not torch.equal(head, embedding):
        raise UserError(
            f"{folder}: config.json ties the output matrix to the embedding, but lm_head.weight differs from "
            "model.embed_tokens.weight"
        )
