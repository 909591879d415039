"""Checkpoints without some of their blocks: a folder of ours or of Hugging Face, as it is but for those blocks.

Tensors keep their bits and their dtype. Blocks that stay are numbered anew, and what the config states layer by layer
(widths, heads, kinds of attention) is cut in the same way; what it only implies by a layer's number is written out.
With `identity` the blocks stay, and all their parameters are zero: in a pre-norm family such a block adds nothing.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.exchange.carried import SOURCE_CONFIG, read_source
from geowidth.exchange.checkpoint import read_config, read_folder_tensors, tokenizer_files, write_files
from geowidth.exchange.formats import write_config
from geowidth.exchange.shape import MODULE
from geowidth.measure.families import family_of
from geowidth.measure.models import text_config
from geowidth.models import TaperedTransformer, load_model, save_model
from geowidth.models.config import ModelConfig
from geowidth.models.storage import CONFIG_FILE
from geowidth.tensors import write_tensors

# What configs of transformers state layer by layer, and those that list layers by their number.
PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "intermediate_sizes", "block_configs")
LISTED = ("mlp_only_layers",)
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def write_without(source: Path, model: torch.nn.Module, removed: Sequence[int], identity: bool, folder: Path) -> None:
    """Write the checkpoint in the folder `source`, opened as `model`, without the blocks `removed` to `folder`."""
    if (source / CONFIG_FILE).is_file():
        _write_own(source, removed, identity, folder)
    else:
        _write_library(source, model, removed, identity, folder)
    write_files(folder, tokenizer_files(source))


def shortened(config: ModelConfig, kept: Sequence[int]) -> ModelConfig:
    """The ModelConfig of the layers `kept`, in their order."""
    heads = None if config.layer_heads is None else tuple(config.layer_heads[i] for i in kept)
    return replace(config, layers=len(kept), widths=tuple(config.widths[i] for i in kept), layer_heads=heads)


def _write_own(source, removed, identity, folder):
    model = load_model(source)
    layers, carried = model.config.layers, read_source(source)
    kept = [i for i in range(layers) if i not in removed]
    state = _tensors(model.state_dict(), "blocks", kept, removed, identity)
    config = model.config if identity else shortened(model.config, kept)
    short = TaperedTransformer(config, seed=None).to(next(iter(state.values())).dtype)
    short.load_state_dict(state)
    save_model(short, folder)
    if carried is not None:
        records.write_json(
            folder / SOURCE_CONFIG, carried if identity else _shortened_json(carried, None, layers, kept)
        )


def _write_library(source, model, removed, identity, folder):
    layers = len(family_of(model).blocks(model))
    kept = [i for i in range(layers) if i not in removed]
    tensors, config = read_folder_tensors(source), read_config(source)
    place = _list_of_blocks(source, tensors, model, layers)
    write_tensors(folder / "model.safetensors", _tensors(tensors, place, kept, removed, identity), {"format": "pt"})
    write_config(folder, config if identity else _shortened_json(config, text_config(model), layers, kept))
    if (code := source / f"{MODULE}.py").is_file():  # of our own exports
        records.write_bytes(folder / code.name, code.read_bytes())


def _list_of_blocks(source, tensors, model, layers):
    """The name of the list of blocks in the files: as in the model, or as in its backbone alone."""
    for place in dict.fromkeys(("model.layers", *family_of(model).layers)):
        found = {int(m[1]) for name in tensors if (m := re.match(rf"{re.escape(place)}\.(\d+)\.", name))}
        if found == set(range(layers)):
            return place
    raise UserError(f"{source}: its files hold the {layers} blocks under names that are not known; blocks cannot go")


def _tensors(tensors, place, kept, removed, identity):
    """{name: tensor} of the blocks that are kept, numbered anew; with `identity` zeros for those that are not."""
    number = {old: old if identity else new for new, old in enumerate(kept)}
    number |= {old: old for old in removed} if identity else {}
    found = {}
    for name, tensor in tensors.items():
        match = re.match(rf"{re.escape(place)}\.(\d+)(\..*)", name)
        if match is None:
            found[name] = tensor
        elif (old := int(match[1])) in number:
            found[f"{place}.{number[old]}{match[2]}"] = torch.zeros_like(tensor) if old in removed else tensor
    return found


def _shortened_json(config, loaded, layers, kept):
    """A config.json of the layers `kept`. loaded: the config object made of it, which states what it only implies."""
    config = json.loads(json.dumps(config))
    part = config.get("text_config") if not set(DEPTHS) & set(config) else None
    section: dict[str, Any] = config if part is None else part
    names = getattr(loaded, "attribute_map", {})
    section[next((name for name in DEPTHS if name in section), names.get("num_hidden_layers", DEPTHS[0]))] = len(kept)
    for name in PER_LAYER:
        values = section.get(name) or getattr(loaded, name, None)
        if isinstance(values, (list, tuple)) and len(values) == layers:
            section[name] = [values[i] for i in kept]
    for name in LISTED:
        if section.get(name):
            section[name] = [new for new, old in enumerate(kept) if old in section[name]]
    return config
