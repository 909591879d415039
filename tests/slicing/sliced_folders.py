"""Small model folders of every family, as users have them on disk."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from geowidth.exchange.convert import checkpoint_from
from geowidth.exchange.formats import export
from geowidth.models import ModelConfig, TaperedTransformer, save_model

WORDS = ("?", "the", "width", "of", "a", "layer", "is", "what", "its", "work", "asks", "for")
SMALL = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
SMALL |= {"num_attention_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0}
SMALL |= {"bos_token_id": 1, "eos_token_id": 2}
ONE_KEY = {"num_key_value_heads": 1}
GEMMA = {**ONE_KEY, "head_dim": 8, "sliding_window": 3}
# kind: what its config has beside SMALL. The first group is written with one width a layer, the second padded.
TAPERED = {
    "llama": {"tie_word_embeddings": True},
    "mistral": ONE_KEY,
    "qwen2": {**ONE_KEY, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
    "qwen3": {**ONE_KEY, "head_dim": 8},
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "granite": {**ONE_KEY, "residual_multiplier": 0.5},
    "olmo2": ONE_KEY,
    "phi3": ONE_KEY,
    "smollm3": {**ONE_KEY, "no_rope_layer_interval": 2},
}
PADDED = {
    "gemma": {**ONE_KEY, "head_dim": 8},
    "gpt2": {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32, "n_inner": 24},
    "gpt_neox": {"use_parallel_residual": True},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "phi": {},
}
ENCODERS = {
    "bert": {},
    "distilbert": {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24},
}
FAMILIES = {**TAPERED, **PADDED, **ENCODERS}


def word_tokenizer(folder):
    tokenizer = Tokenizer(models.WordLevel(dict(zip(WORDS, range(12), strict=True)), unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def library_folder(path, kind, dtype=torch.float32, change=None, **changes):
    """A folder by transformers; change(model) is called before it is written."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SMALL | FAMILIES[kind] | changes)
    auto = transformers.AutoModel if kind in ENCODERS else transformers.AutoModelForCausalLM
    model = auto.from_config(config).to(dtype)
    with torch.no_grad():  # biases of 0, gains of 1 and FFNs that hardly add a thing would hide what is lost
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
            else:
                parameter.add_(torch.linspace(-0.2, 0.3, len(parameter)).to(dtype))
    if change is not None:
        change(model)
    model.save_pretrained(path)
    word_tokenizer(path)
    return path


def own_folder(path, dtype=torch.float32, change=None, widths=(24, 8, 30), **config):
    model = TaperedTransformer(ModelConfig(256, len(widths), 16, 2, widths, 32, **config), seed=1).to(dtype)
    if change is not None:
        change(model)
    save_model(model, path)
    return path


def exported_folder(path, widths=(24, 8, 30)):
    """An export of ours, whose widths differ already."""
    model = TaperedTransformer(ModelConfig(256, len(widths), 16, 2, widths, 32), seed=1)
    export(checkpoint_from(model), "hf", path)
    return path
