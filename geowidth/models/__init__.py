"""Transformers with one FFN width per layer: shape, presets, loading and saving, generation."""

from geowidth.models.cache import KeyValueCache, cache_bytes
from geowidth.models.config import ModelConfig
from geowidth.models.generation import generate
from geowidth.models.storage import load_model, save_model
from geowidth.models.transformer import TaperedTransformer

__all__ = [
    "KeyValueCache",
    "ModelConfig",
    "TaperedTransformer",
    "cache_bytes",
    "generate",
    "load_model",
    "save_model",
]
