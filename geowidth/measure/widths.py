"""FFN widths by what a down-projection computes, not by how its weight is stored: 4-bit layers pack theirs."""

from typing import Any

import torch
from torch import nn

from geowidth.errors import UserError

STATED = ("in_features", "infeatures")  # as the layers of torch, bitsandbytes, AWQ and GPTQ name their input's size
EXPERT_DOWN = ("w2", "down_proj")


def inner_width(down, where):
    """Inner width of a down-projection: a linear layer (d, width), GPT-2's Conv1D (width, d), or experts, added up.

    where   what it is, for the message that refuses a layer whose width cannot be told
    """
    for width in (_width_of_experts(down, where), _width_of_weight(down), _stated_width(down)):
        if width is not None:
            return width
    if isinstance(getattr(down, "base_layer", None), nn.Module):  # an adapter around it
        return inner_width(down.base_layer, where)
    raise UserError(
        f"{where} is a {type(down).__name__} that neither holds a plain weight nor names its in_features, so its width "
        "cannot be told; give a model whose weights are not packed"
    )


def _width_of_weight(layer):
    """By a weight that is one plain matrix. A subclass, or a matrix of whole numbers, may be packed in any shape.

    It goes before the stated size, which stays behind where someone cut columns away.
    """
    weight: Any = getattr(layer, "weight", None)
    plain = type(weight) in (torch.Tensor, nn.Parameter) and weight.is_floating_point()
    if not plain or weight.ndim != 2:
        return None
    if type(layer).__name__ == "Conv1D":
        return weight.shape[0]
    return weight.shape[1] if weight.shape[0] == getattr(layer, "out_features", weight.shape[0]) else None


def _stated_width(layer):
    width = next((getattr(layer, name) for name in STATED if hasattr(layer, name)), None)
    return width if isinstance(width, int) and width > 0 else None  # 0: not initialised yet


def _width_of_experts(down, where):
    """By one tensor (experts, d, width) for all of them, or by a list of experts; None for what is no such thing."""
    fused = getattr(down, "down_proj", None)
    if isinstance(fused, torch.Tensor) and fused.ndim == 3 and fused.is_floating_point():
        return fused.shape[0] * fused.shape[2]
    if not isinstance(down, (nn.ModuleList, nn.Sequential)):
        return None
    return sum(inner_width(_down_of(expert, where), where) for expert in down)


def _down_of(expert, where):
    found = next((getattr(expert, name) for name in EXPERT_DOWN if hasattr(expert, name)), None)
    if found is None:
        raise UserError(
            f"{where}: an expert of type {type(expert).__name__} has none of {', '.join(EXPERT_DOWN)}, so its width "
            "cannot be told"
        )
    return found
