"""The config.json of an export: the source's, whole, with what the format changes changed and nothing else.

Fields the format has a different place for are translated: widths, the rotary positions (in the form that transformers
4 and 5 both read), the dtype where --dtype changed it. All others, known here or not, null or not, stay as they are.
"""

from pathlib import Path
from typing import Any

from geowidth import records
from geowidth.errors import UserError
from geowidth.exchange.checkpoint import Checkpoint, write_files
from geowidth.exchange.rope import with_older_rope
from geowidth.exchange.shape import CLASSES, GATE_FIELD, HEADS_FIELD, LlamaShape
from geowidth.files import PathLike

SOURCE_CONFIG = "source_config.json"
# Written by the exporter for its format; a source that is an export itself has those of its own format.
FORMAT_FIELDS = ("auto_map", "intermediate_sizes", "block_configs", "architectures", HEADS_FIELD, GATE_FIELD)


def stock_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json of the stock family, whose every layer is as wide as the widest."""
    shape = checkpoint.shape
    config = checkpoint.config or {**shape.config(), "dtype": dtype_name(checkpoint)}
    config = {name: value for name, value in config.items() if name not in FORMAT_FIELDS}
    config |= {"model_type": shape.family, "architectures": [f"{CLASSES[shape.family]}ForCausalLM"]}
    config |= {"intermediate_size": max(shape.widths, default=0), "num_hidden_layers": shape.layers}
    # A null that this family's newer config class does not take, or that stood for what block_configs say.
    if config.get("num_key_value_heads") is None and (shape.family == "mistral" or shape.key_heads != shape.heads):
        config["num_key_value_heads"] = shape.key_heads
    return with_older_rope(config, checkpoint.where)


def dtype_name(checkpoint: Checkpoint) -> str:
    """The dtype of a checkpoint's weights as a config states it."""
    return str(checkpoint.dtype).removeprefix("torch.")


def write_source(checkpoint: Checkpoint, folder: Path) -> None:
    """For formats with no place for a config.json: the source's, under another name, and the files beside it."""
    if checkpoint.config is not None:
        records.write_json(folder / SOURCE_CONFIG, checkpoint.config)
    write_files(folder, checkpoint.files)


def read_source(folder: PathLike) -> dict[str, Any] | None:
    """The config.json that a model of ours was made from, as `write_source` kept it, or None."""
    path = Path(folder) / SOURCE_CONFIG
    value = records.read_json(path) if path.is_file() else None
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}; a JSON object is needed")
    return value


def refuse_windows(checkpoint: Checkpoint, form: str) -> None:
    """Raise a UserError for a model with attention windows, which the format `form` has no place for."""
    shape = checkpoint.shape
    if shape.reach < shape.context:
        raise UserError(
            f"{checkpoint.where}: sliding_window of {shape.reach} in texts of up to {shape.context} tokens has no form "
            f"in {form}; take hf or hf-padded"
        )


def refuse_unlike(
    shape: LlamaShape,
    where: str,
    form: str,
    activations: tuple[tuple[str, bool], ...] | None = None,
    heads: bool = False,
) -> None:
    """Raise a UserError for FFNs and heads that the format `form` cannot state.

    activations: pairs (function, gated) that it can; None for every function with a gate. heads: whether it can state
    another number of attention heads for every layer.
    """
    if shape.layer_heads is not None and not heads:
        listed = " ".join(map(str, shape.layer_heads))
        raise UserError(f"{where}: attention heads {listed} by layer have no form in {form}; take hf")
    able = shape.gated if activations is None else (shape.activation, shape.gated) in activations
    if not able:
        what = f"{shape.activation} {'with' if shape.gated else 'without'} a gate"
        raise UserError(f"{where}: FFNs of {what} have no form in {form}; take hf")
