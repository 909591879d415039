"""Sizes that a config.json states, checked against the weight files and the machine before anything is built.

A config is text and may state anything: 50,000 layers take a minute to build, a vocabulary of 2**31 takes the memory.
The names, shapes and sizes of what is in the weight files are read from their headers.
"""

import math
import re

from geowidth import memory
from geowidth.errors import UserError, whole
from geowidth.exchange.checkpoint import WAY_OUT

# Entries of config.json that size a model, as the known families name them.
COUNTED = ("num_hidden_layers", "n_layer", "n_layers", "num_local_experts", "num_experts")
POSITIONS = ("max_position_embeddings", "n_positions")
AXES = ("vocab_size", "hidden_size", "n_embd", "dim", "num_attention_heads", "n_head", "n_heads")
AXES += ("num_key_value_heads", "head_dim", "embedding_size", "word_embed_proj_dim")
INNER = ("intermediate_size", "n_inner", "ffn_dim", "hidden_dim", "moe_intermediate_size")
MAY_BE_NULL = (
    "n_inner",
    "head_dim",
    "num_key_value_heads",
    "word_embed_proj_dim",
    "num_experts",
    "num_labels",
    *POSITIONS,
)
PARTS = ("text_config", "vision_config", "audio_config")
MOST_LABELS = 1_000_000  # the library writes a name for each
LARGEST = 2**40  # far beyond any model, far within what torch counts with
POSITION_TABLE = re.compile(r"(^|\.)(position_embeddings|embed_positions|wpe)\.weight$")


def check_stated(config, shapes, where):
    """Refuse sizes in a config.json that are no whole numbers, and counts of parts that the weight files do not hold.

    config   the dict of config.json; what stands under PARTS is checked alike
    shapes   {name: shape} of the weight files
    """
    for part in PARTS:
        nested = config.get(part)
        if nested is not None and not isinstance(nested, dict):
            raise UserError(f"{where}: {part} is a {type(nested).__name__}; a JSON object is needed")
        if nested:
            check_stated({**nested, **dict.fromkeys(PARTS)}, shapes, f"{where}: {part}")
    numbers = {part for name in shapes for part in name.split(".") if part.isdecimal()}
    parts = max([len(numbers), *(shape[0] for shape in shapes.values() if len(shape) == 3)])
    table = max((shape[0] for name, shape in shapes.items() if POSITION_TABLE.search(name)), default=math.inf)
    _check_each(config, COUNTED, 1, parts, "the weight files hold {} numbered parts", where)
    _check_each(config, POSITIONS, 1, table, "the table of positions has {} rows", where)
    _check_each(config, ("num_labels",), 0, MOST_LABELS, "{} are the most that are read", where)
    _check_each(config, AXES, 1, math.inf, "", where)
    _check_each(config, INNER, 0, math.inf, "", where)


def _check_each(config, names, least, most, fact, where):
    for name in names:
        value = config.get(name)
        if name not in config or (value is None and name in MAY_BE_NULL):
            continue
        if whole(f"{where}: {name}", value, least, LARGEST) > most:
            told = fact.format(most)
            raise UserError(f"{where}: {name} is {value}, but {told}; take config.json and weights of one model")


def check_built(model, shapes, folder):
    """Refuse weight files that do not fit the model their config.json asks for, by tensor and shapes.

    model    built on the meta device, so that nothing is in memory yet
    shapes   {name: shape} of the weight files
    """
    prefix = f"{model.base_model_prefix}."
    wanted = {name: p for name, p in model.named_parameters() if "pooler" not in name}
    lacking = []
    for name, parameter in wanted.items():
        found = next((n for n in (name, prefix + name, name.removeprefix(prefix)) if n in shapes), None)
        if found is None:
            lacking.append(name)
        elif shapes[found] != tuple(parameter.shape):
            raise mismatch(folder, found, shapes[found], parameter.shape)
    numbers = sum(p.numel() for p in wanted.values())
    stored = sum(math.prod(shape) for shape in shapes.values())
    if lacking and numbers > stored:
        raise UserError(
            f"{folder}: tensor {lacking[0]} is missing or has another shape than config.json asks for: the model has "
            f"{numbers} numbers, the weight files hold {stored}"
        )
    memory.check(f"{folder} in float32", 4 * numbers, "measure it on a larger machine")


def mismatch(folder, name, found, wanted):
    """The UserError for a tensor of another shape than config.json asks for."""
    inner = any(part in name for part in (".mlp.", "intermediate", ".fc"))
    advice = WAY_OUT.format(folder) if inner else "take config.json and weights of one model"
    shapes = f"{list(found)} for {list(wanted)}"
    return UserError(f"{folder}: tensor {name} has another shape than config.json asks for, {shapes}; {advice}")
