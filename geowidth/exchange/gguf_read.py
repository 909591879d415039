"""Read Llama-family GGUF files (architectures llama and deci) into a Checkpoint, quantised ones included.

llama.cpp rotates neighbouring pairs of a head's features, Hugging Face the two halves; GGUF files therefore hold the
rows of queries and keys permuted, which is undone here. Quantised blocks become float32.
"""

import re

import numpy as np
import torch

from geowidth.errors import UserError, choose, positive, whole
from geowidth.exchange.checkpoint import Checkpoint, check_shapes, fill_empty_layers, of_empty_layer
from geowidth.exchange.gguf_file import open_gguf
from geowidth.exchange.gguf_vocabulary import vocabulary_from_gguf, vocabulary_ids
from geowidth.exchange.shape import HEADS_FIELD, LlamaShape
from geowidth.files import PathLike

# GGUF's tensor names, without "blk.N.", and Hugging Face's, without "model.layers.N."
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def read_gguf(path: PathLike) -> Checkpoint:
    """The Checkpoint in a GGUF file, in float32.

    Raises UserError, in one line, for a damaged file, another architecture, or what has no place in a Llama model.
    """
    file = open_gguf(path)
    path = file.path
    config, widths = _config(file)
    vocabulary = vocabulary_from_gguf(file.fields, path)
    config |= vocabulary_ids(file.fields, config["vocab_size"], path)
    shape = LlamaShape.from_config(config, str(path), widths)
    entries = {_hugging_face_name(entry.name, path): entry for entry in file.entries}
    wanted = {name: size for name, size in shape.tensors().items() if name in entries or not _left_out(name, shape)}
    check_shapes(str(path), wanted, {name: entry.shape for name, entry in entries.items()})
    tensors = {}
    for name, entry in entries.items():
        values = torch.from_numpy(file.tensor(entry))
        if name.endswith(("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias")):
            heads = shape.heads_by_layer if ".q_proj." in name else shape.key_heads_by_layer
            values = interleaved_to_halves(values, heads[int(name.split(".")[2])])
        tensors[name] = values
    fill_empty_layers(shape, tensors)
    for name, size in shape.tensors().items():
        if name.endswith(".bias"):
            tensors.setdefault(name, torch.zeros(size))
    return Checkpoint(shape, tensors, vocabulary.files() if vocabulary else {}, str(path), config)


def _left_out(name, shape):
    """Whether a file need not hold a tensor: one of an empty FFN, or a bias, which is zero then."""
    return name.endswith(".bias") or of_empty_layer(name, shape)


def read_gguf_shape(path: PathLike) -> LlamaShape:
    """The LlamaShape of a GGUF file, whose tensors are left alone."""
    file = open_gguf(path)
    config, widths = _config(file)
    return LlamaShape.from_config(config, str(file.path), widths)


def interleaved_to_halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key matrix (or bias) from llama.cpp's order, feature pairs side by side, to two halves."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def halves_to_interleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The inverse of `interleaved_to_halves`."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


# What `llama.*` and `deci.*` fields may be there, beside those that are read, and the value that changes nothing.
NEUTRAL = {
    "attention.causal": True,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "use_parallel_residual": False,
    "expert_count": 0,
    "expert_used_count": 0,
    "logit_scale": 0.0,
    "embedding_scale": 0.0,
    "residual_scale": 0.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.finetuned": None,  # says something of training, whatever its value
    "rope.scaling.original_context_length": None,  # read by other kinds of scaling
    "tensor_data_layout": None,
    "attention.layer_norm_epsilon": None,  # of another kind of norm
}
LISTS = ("feed_forward_length", "attention.head_count", "attention.head_count_kv", "tensor_data_layout")  # by layer
READ = (
    "context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "attention.sliding_window",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear",
)  # fmt: skip


def _config(file):
    """(config.json of a llama as the file's fields state it, FFN widths)."""
    fields, path = file.fields, file.path
    names = {entry.name for entry in file.entries}
    architecture = choose(f"{path}: architecture", fields.get("general.architecture"), ["llama", "deci"])
    prefix = f"{architecture}."
    stated = {key.removeprefix(prefix): value for key, value in fields.items() if key.startswith(prefix)}
    _refuse_unknown(stated, architecture, path)
    if "rope_freqs.weight" in names:
        raise UserError(f"{path}: tensor rope_freqs.weight scales the rotary angles; take the safetensors instead")

    def get(name, default=None):
        value = stated.get(name, default)
        if value is None:
            raise UserError(f"{path}: {architecture}.{name} is missing")
        return value

    layers = whole(f"{path}: {architecture}.block_count", get("block_count"), 1)
    if layers > len(names):
        raise UserError(f"{path}: {architecture}.block_count is {layers}; the file holds {len(names)} tensors in all")
    dimension = whole(f"{path}: {architecture}.embedding_length", get("embedding_length"), 1)
    heads = _by_layer(get("attention.head_count"), "attention.head_count", layers, path)
    key_heads = _by_layer(get("attention.head_count_kv", heads), "attention.head_count_kv", layers, path)
    head_size = get("attention.key_length", dimension // heads[0])
    for name in ("attention.value_length", "rope.dimension_count"):
        if stated.get(name, head_size) != head_size:
            raise UserError(f"{path}: {architecture}.{name} is {stated[name]}; a head has {head_size}")
    tokens = fields.get("tokenizer.ggml.tokens")
    config = {
        "model_type": "llama",
        "vocab_size": get("vocab_size", len(tokens) if isinstance(tokens, list) else None),
        "hidden_size": dimension,
        "num_hidden_layers": layers,
        **_heads(heads, key_heads, dimension, head_size, path),
        "head_dim": head_size,
        "hidden_act": "silu",
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": _shortest(get("attention.layer_norm_rms_epsilon"), "attention.layer_norm_rms_epsilon", path),
        "rope_theta": _shortest(get("rope.freq_base", 10000.0), "rope.freq_base", path),
        **_linear(stated, path),
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": any(re.fullmatch(r"blk\.\d+\.attn_(q|k|v|output)\.bias", name) for name in names),
        "mlp_bias": any(re.fullmatch(r"blk\.\d+\.ffn_(gate|up|down)\.bias", name) for name in names),
    }
    window = stated.get("attention.sliding_window", 0)
    if window and window < config["max_position_embeddings"]:
        raise UserError(f"{path}: attention.sliding_window is {window}; windows are not read from GGUF")
    return config, _widths(get("feed_forward_length"), layers, path)


def _refuse_unknown(stated, architecture, path):
    for name, value in stated.items():
        listed = isinstance(value, (list, np.ndarray))
        if listed and name not in LISTS:
            raise UserError(f"{path}: {architecture}.{name} is a list; needed: one value")
        if name in READ or (name in NEUTRAL and (NEUTRAL[name] is None or NEUTRAL[name] == value)):
            continue
        shown = f"{value!r:.60}"
        raise UserError(f"{path}: {architecture}.{name} is {shown}; Llama models with it are not read")


def _widths(stated, layers, path):
    widths = stated.tolist() if isinstance(stated, np.ndarray) else stated
    widths = widths if isinstance(widths, list) else [widths] * layers
    if len(widths) != layers:
        raise UserError(f"{path}: feed_forward_length has {len(widths)} entries for {layers} layers")
    return [whole(f"{path}: feed_forward_length", width, 0) for width in widths]


def _linear(stated, path):
    """{rope_scaling} of linear scaling, under its newer or its older name; nothing without."""
    older = stated.get("rope.scale_linear", 1.0)
    kind = choose(f"{path}: rope scaling", stated.get("rope.scaling.type", "none"), ["none", "linear"])
    if kind == "none" and older == 1.0:
        return {}
    factor = stated.get("rope.scaling.factor", older)
    return {"rope_scaling": {"rope_type": "linear", "factor": _shortest(factor, "rope.scaling.factor", path)}}


def _by_layer(value, name, layers, path):
    """The values of all layers: one number stands for as many."""
    values = value.tolist() if isinstance(value, np.ndarray) else value
    values = values if isinstance(values, list) else [values] * layers
    if len(values) != layers:
        raise UserError(f"{path}: {name} has {len(values)} entries for {layers} layers")
    return [whole(f"{path}: {name}", one, 1) for one in values]


def _heads(heads, key_heads, dimension, head_size, path):
    """Fields of a config.json for these heads by layer; keys must be shared alike in all layers."""
    groups = {(count // keys, count % keys) for count, keys in zip(heads, key_heads, strict=True)}
    if len(groups) != 1 or next(iter(groups))[1]:
        raise UserError(f"{path}: heads share keys differently from layer to layer; models with it are not read")
    group = heads[0] // key_heads[0]
    usual = heads[0]
    if len(set(heads)) > 1:  # the number that the model's dimension has room for, where that is one
        fits = dimension % head_size == 0 and dimension // head_size % group == 0
        usual = dimension // head_size if fits else max(heads)
    found = {"num_attention_heads": usual, "num_key_value_heads": usual // group}
    return found if set(heads) == {usual} else {**found, HEADS_FIELD: heads}


def _shortest(value, name, path):
    """A float32 number as the shortest decimal that rounds to it: 1e-05, not 9.999999747378752e-06."""
    positive(f"{path}: {name}", value)
    return float(str(np.float32(value)))


def _hugging_face_name(name, path):
    stem, _, kind = name.rpartition(".")
    if stem in OUTER_NAMES:
        return f"{OUTER_NAMES[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in BLOCK_NAMES:
        return f"model.layers.{parts[1]}.{BLOCK_NAMES[parts[2]]}.{kind}"
    raise UserError(f"{path}: tensor {name} belongs to no part of a Llama-family model")
