"""Activations of feed-forward layers."""

from geowidth.ops.activation.operation import activate

__all__ = ["activate"]
