"""Small models of every kind that is exchanged, and a way to damage one on disk."""

import torch
from safetensors.torch import load_file, save_file

from geowidth.models import ModelConfig, TaperedTransformer

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
CONFIGS = {
    "plain": {},
    "grouped": {"key_heads": 2, "rope_base": 500.0, "norm_epsilon": 1e-3},
    "one key head": {"key_heads": 1, "tied": False},
    "wide heads": {"head_size": 10, "key_heads": 2},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {"rope_scaling": LLAMA3, "tied": False},
}


def small(name="grouped", widths=(24, 7, 0, 33), dtype=torch.float32):
    model = TaperedTransformer(ModelConfig(61, len(widths), 32, 4, widths, 48, **CONFIGS[name]), seed=2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # gains of 1 would hide an exchanged pair of norms
                parameter.add_(torch.linspace(-0.2, 0.3, len(parameter)))
    return model.to(dtype).eval()


def damage(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
