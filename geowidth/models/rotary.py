"""Rotary positions (Su et al. 2021) in the rotate-half layout: frequencies, tables, and the turning itself."""

import math
from typing import Any

import torch

from geowidth.errors import UserError


def rope_frequencies(head_dimension: int, base: float, scaling: dict[str, Any] | None = None) -> torch.Tensor:
    """Rotary angles per position, (head_dimension / 2,) float64, fastest first.

    scaling: see ModelConfig. "linear" divides all angles (Chen et al. 2023); "llama3" divides those whose wavelength is
    above original / low_freq_factor, leaves those below original / high_freq_factor, and blends between (Llama 3.1).
    """
    half = head_dimension // 2
    frequency = base ** (-torch.arange(half, dtype=torch.float64) / half)
    if scaling is None:
        return frequency
    scaling = scaling if isinstance(scaling, dict) else {"rope_type": scaling}
    kind, parts = scaling.get("rope_type"), ("factor",)
    if kind == "llama3":
        parts += ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    given = [scaling.get(name) for name in parts]
    if kind not in ("linear", "llama3") or not all(map(_positive, given)):
        raise UserError(f"rope_scaling is {scaling!r}; allowed: linear or llama3, with positive {', '.join(parts)}")
    if kind == "linear":
        return frequency / scaling["factor"]
    factor, low, high, original = (scaling[name] for name in parts)
    if not low < high:
        raise UserError(f"rope_scaling is {scaling!r}; allowed: low_freq_factor below high_freq_factor")
    turns = original * frequency / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / factor)


def _positive(value):
    return type(value) in (int, float) and 0 < value < math.inf


def rotary_tables(
    context: int, head_dimension: int, base: float, scaling: dict[str, Any] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines (context, 1, head_dimension) float32 of the rotary angles, in the rotate-half layout."""
    frequency = rope_frequencies(head_dimension, base, scaling)
    angle = torch.outer(torch.arange(context, dtype=torch.float64), frequency)
    cosine = torch.cat((angle.cos(), angle.cos()), -1)
    sine = torch.cat((-angle.sin(), angle.sin()), -1)
    return cosine[:, None].float(), sine[:, None].float()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary positions: x (batch, tokens, heads, head_dimension) turned by the tables of its positions.

    The angles keep the dtype of the tables; the result is rounded once, to that of x.
    """
    return (x * cosine + x.roll(x.shape[-1] // 2, -1) * sine).to(x.dtype)
