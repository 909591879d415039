"""Transformers with one FFN width per layer: shape, presets, loading and saving."""

from geowidth.models.config import ModelConfig
from geowidth.models.storage import load_model, save_model
from geowidth.models.transformer import TaperedTransformer

__all__ = ["ModelConfig", "TaperedTransformer", "load_model", "save_model"]
