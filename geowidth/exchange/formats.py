"""The formats of `geowidth export`. A module outside the package adds one with `FORMATS.register(Format(...))`.

A format writes into an empty folder that `export` moves into place when it is whole. FFN padding is with zero rows of
gate and up and zero columns of down: they add exactly nothing to the logits.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from geowidth import records
from geowidth.errors import UserError, choose
from geowidth.exchange.carried import refuse_unlike, refuse_windows, stock_config, write_source
from geowidth.exchange.checkpoint import Checkpoint, write_files
from geowidth.exchange.convert import model_from
from geowidth.exchange.fields import DEFAULTS
from geowidth.exchange.folders import aside_of, written_whole
from geowidth.exchange.gguf_write import write_gguf
from geowidth.exchange.megatron import write_megatron, write_megatron_shape
from geowidth.exchange.remote_code import CLASSES, modelling_file
from geowidth.exchange.rope import with_older_rope
from geowidth.exchange.shape import (
    GATE_FIELD,
    HEADS_FIELD,
    MODULE,
    TAPERED,
    LlamaShape,
    heads_by_layer,
    refuse_other_models,
)
from geowidth.files import PathLike
from geowidth.models import save_model
from geowidth.registry import Registry
from geowidth.tensors import write_tensors

KIND, SCHEMA = "geowidth.export", 1
NEMOTRON_STEP = 256  # widths are stated as multiples of this there


def padded(checkpoint: Checkpoint, widths: Sequence[int]) -> Checkpoint:
    """The Checkpoint with FFNs zero-padded to `widths`, which are no smaller than its own."""
    if tuple(widths) == checkpoint.shape.widths:
        return checkpoint
    tensors = dict(checkpoint.tensors)
    for layer, (old, new) in enumerate(zip(checkpoint.shape.widths, widths, strict=True)):
        for name in ("gate_proj.weight", "up_proj.weight", "gate_proj.bias", "up_proj.bias"):
            full = f"model.layers.{layer}.mlp.{name}"
            if full in tensors:
                tensor = tensors[full]
                tensors[full] = torch.cat([tensor, tensor.new_zeros(new - old, *tensor.shape[1:])])
        down = tensors[f"model.layers.{layer}.mlp.down_proj.weight"]
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] = torch.cat(
            [down, down.new_zeros(down.shape[0], new - old)], dim=1
        )
    return replace(checkpoint, shape=replace(checkpoint.shape, widths=tuple(widths)), tensors=tensors)


def write_hf(checkpoint: Checkpoint, folder: Path) -> list[str]:
    """Per-layer widths in config.json, a small modelling file, safetensors; for trust_remote_code."""
    shape, config = checkpoint.shape, stock_config(checkpoint)
    config |= {} if shape.layer_heads is None else {HEADS_FIELD: list(shape.layer_heads)}
    config |= {} if shape.gated else {GATE_FIELD: False}
    write_tapered_config(folder, shape.family, config, shape.widths)
    write_weights(folder, _without_empty_layers(checkpoint), checkpoint.files)
    return [f"load with AutoModelForCausalLM.from_pretrained({str(folder)!r}, trust_remote_code=True)"]


def write_hf_padded(checkpoint: Checkpoint, folder: Path) -> list[str]:
    """A stock model of the family, every FFN zero-padded to the widest: same logits, loads anywhere."""
    refuse_unlike(checkpoint.shape, checkpoint.where, "hf-padded")
    widest = max(1, *checkpoint.shape.widths)
    wide = padded(checkpoint, [widest] * checkpoint.shape.layers)
    write_config(folder, stock_config(wide))
    write_weights(folder, wide.tensors, checkpoint.files)
    share = sum(checkpoint.shape.widths) / (widest * checkpoint.shape.layers)
    return [f"every FFN is {widest} wide here; {1 - share:.0%} of that is zero padding, which costs memory and time"]


def write_gguf_folder(checkpoint: Checkpoint, folder: Path) -> list[str]:
    """GGUF of architecture deci with a feed_forward_length array, for llama.cpp."""
    widths = [width or 32 for width in checkpoint.shape.widths]
    words = write_gguf(padded(checkpoint, widths), folder / "model.gguf")
    write_source(checkpoint, folder)
    return words + _padding_words(checkpoint.shape.widths, widths, "llama.cpp wants an FFN in every layer")


def write_nemotron(checkpoint: Checkpoint, folder: Path) -> list[str]:
    """Llama-Nemotron's block_configs, which vLLM and SGLang read with one FFN width per layer."""
    shape = checkpoint.shape
    if shape.family not in ("llama", "mistral"):
        raise UserError(f"{checkpoint.where}: nemotron-nas holds llama and mistral models; this is a {shape.family}")
    refuse_windows(checkpoint, "nemotron-nas")
    refuse_unlike(shape, checkpoint.where, "nemotron-nas", (("silu", True),))
    widths = [-(-width // NEMOTRON_STEP) * NEMOTRON_STEP for width in shape.widths]
    wide = padded(checkpoint, widths)
    text, auto_map = modelling_file("llama", "nemotron-nas", "DeciLM", blocks=True)
    # Absent fields have the defaults of the source's family, which the format's own, a llama, does not share.
    absent = {name: value for name, value in DEFAULTS[shape.family].items() if value is not None}
    config = {**(absent if shape.family != "llama" else {}), **stock_config(wide)}
    config |= {"model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"]}
    write_config(folder, config | {"auto_map": auto_map, "block_configs": nemotron_blocks(wide.shape)})
    records.write_text(folder / f"{MODULE}.py", text)
    write_weights(folder, _without_empty_layers(wide), checkpoint.files)
    return _padding_words(shape.widths, widths, f"this format states widths in steps of {NEMOTRON_STEP}")


def nemotron_blocks(shape: LlamaShape) -> list[dict[str, Any]]:
    """block_configs of a LlamaShape whose widths are multiples of 256: the reader rounds ffn_mult up to them."""
    attention = {"n_heads_in_group": shape.heads // shape.key_heads, "no_op": False, "replace_with_linear": False}
    blocks = []
    for width in shape.widths:
        # Half a step below the width, so that no rounding of the product can reach the next multiple.
        multiple = None if width == 0 else 3 * (width - NEMOTRON_STEP // 2) / (2 * shape.dimension)
        ffn = {"ffn_mult": multiple, "no_op": width == 0, "replace_with_linear": False}
        blocks.append({"attention": dict(attention), "ffn": ffn})
    return blocks


def write_own(checkpoint: Checkpoint, folder: Path) -> list[str]:
    """Our own model: model.json and model.safetensors, for geowidth train, measure and Python."""
    shape = checkpoint.shape
    save_model(model_from(checkpoint), folder)
    write_source(checkpoint, folder)
    if shape.reach == shape.context:
        return []
    return [f"its context is {shape.reach}, the attention window, and not {shape.context}: this model has no windows"]


@dataclass(frozen=True)
class Format:
    """A format of `geowidth export`.

    name, summary     what --format calls it, and what it is in one line
    write             (checkpoint, folder) -> sentences for the user: writes the model into the folder
    write_untrained   (config, widths, folder, where) -> sentences: writes a family's config.json, a dict read from
                      `where`, with those FFN widths. None for a format that is nothing without weights
    """

    name: str
    summary: str
    write: Callable[[Checkpoint, Path], list[str]]
    write_untrained: Callable[[dict[str, Any], Sequence[int], Path, str], list[str]] | None = None


def export(checkpoint: Checkpoint, form: str, out: PathLike) -> list[str]:
    """Write a Checkpoint in a format into the folder `out`, whole or not at all; returns sentences for the user."""
    chosen = FORMATS[form]
    return _into(out, lambda folder: chosen.write(checkpoint, folder), form, checkpoint.shape.widths)


def export_untrained(
    config: dict[str, Any],
    widths: Sequence[int],
    out: PathLike,
    form: str = "hf",
    where: str = "config.json",
    files: Mapping[str, str | bytes] | None = None,
) -> list[str]:
    """Write a family's config.json with a schedule's widths, to train from scratch.

    form    a format that needs no weights: hf, or megatron for the Llama family
    files   {name: text, or bytes} of the family's tokenizer and generation, written beside it
    """
    chosen = FORMATS[form]
    if chosen.write_untrained is None:
        able = [name for name, one in FORMATS.items() if one.write_untrained is not None]
        raise UserError(f"format {form} needs weights, and a schedule brings none; allowed: {', '.join(able)}")
    if config.get("num_hidden_layers") != len(widths):
        raise UserError(f"the schedule has {len(widths)} widths; {where} has {config.get('num_hidden_layers')} layers")

    def write(folder):
        said = chosen.write_untrained(config, widths, folder, where)
        write_files(folder, files or {})
        return said

    return _into(out, write, form, widths)


def write_untrained_hf(config: dict[str, Any], widths: Sequence[int], folder: Path, where: str) -> list[str]:
    """A family's config with one FFN width per layer and a small modelling file; no weights."""
    family = str(config.get("model_type", "nothing")).removeprefix(TAPERED)
    choose(f"{where}: model_type", family, list(CLASSES))
    refuse_other_models(config, where)
    if family in DEFAULTS:
        LlamaShape.from_config({**config, "model_type": family}, where, widths)
        config = with_older_rope(config, where)
    elif (heads := config.get("num_attention_heads")) and HEADS_FIELD in config:
        heads_by_layer(config, heads, config.get("num_key_value_heads") or heads, len(widths), where)
    write_tapered_config(folder, family, {**config, "intermediate_size": max(widths)}, widths)
    return [
        "no weights: start with AutoModelForCausalLM.from_config("
        f"AutoConfig.from_pretrained({str(folder)!r}, trust_remote_code=True), trust_remote_code=True)"
    ]


def write_untrained_megatron(config: dict[str, Any], widths: Sequence[int], folder: Path, where: str) -> list[str]:
    """Megatron's JSON of a Llama-family config with those widths."""
    return write_megatron_shape(LlamaShape.from_config(config, where, widths), config, folder, where)


FORMATS = Registry(
    "format",
    Format,
    (
        Format(
            "hf",
            "config with one FFN width per layer, a small modelling file, safetensors (trust_remote_code)",
            write_hf,
            write_untrained_hf,
        ),
        Format(
            "hf-padded",
            "the stock family, FFNs padded with zeros to the widest: same logits, loads anywhere",
            write_hf_padded,
        ),
        Format("gguf", "model.gguf of architecture deci, for llama.cpp", write_gguf_folder),
        Format(
            "nemotron-nas",
            "Llama-Nemotron's block_configs, for vLLM and SGLang; widths padded to multiples of 256",
            write_nemotron,
        ),
        Format(
            "megatron",
            "the JSON of Megatron-LM's --heterogeneous-layers-config-path (no weights)",
            write_megatron,
            write_untrained_megatron,
        ),
        Format("geowidth", "our own model, for geowidth measure and Python", write_own),
    ),
)


def _into(out, write, form, widths):
    def filled(folder):
        words = write(folder)
        facts = {"kind": KIND, "schema": SCHEMA, "format": form, "widths": widths}
        records.write_json(folder / "geowidth_export.json", {**facts, "environment": records.environment()})
        return words

    return [word.replace(str(aside_of(out)), str(out)) for word in written_whole(out, filled)]


def write_tapered_config(folder: Path, family: str, config: dict[str, Any], widths: Sequence[int]) -> None:
    """config.json of a family's model with one FFN width a layer, and the modelling file that reads it.

    config   of the stock family, intermediate_size the widest. family: a name of geowidth.exchange.remote_code.CLASSES
    """
    prefix = f"Tapered{CLASSES[family][0].removesuffix('Config')}"
    text, auto_map = modelling_file(family, TAPERED + family, prefix)
    config = {**config, "model_type": TAPERED + family, "architectures": [f"{prefix}ForCausalLM"]}
    config |= {"auto_map": auto_map, "intermediate_sizes": [int(width) for width in widths]}
    write_config(folder, config)
    (folder / f"{MODULE}.py").write_text(text, encoding="utf-8")


def _without_empty_layers(checkpoint):
    """The tensors but those of FFN sub-blocks of width 0, which the modelling files leave out."""
    empty = [f"model.layers.{layer}." for layer, width in enumerate(checkpoint.shape.widths) if width == 0]
    prefixes = tuple(layer + part for layer in empty for part in ("mlp.", "post_attention_layernorm."))
    return {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(prefixes)}


def write_weights(folder: Path, tensors: Mapping[str, torch.Tensor], files: Mapping[str, str | bytes]) -> None:
    """model.safetensors, and {name: text, or bytes} of what stands beside it."""
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    write_files(folder, files)


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """config.json in a folder. Numbers and text stay as they came: the library writes its own non-finite words."""
    (Path(folder) / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _padding_words(old, new, why):
    added = sum(new) - sum(old)
    return [f"{added} zero rows were added over all layers: {why}; logits are unchanged"] if added else []
