"""Intrinsic dimension of a cloud."""

from geowidth.ops.dimension.operation import DimensionResult, intrinsic_dimension, merge_duplicates

__all__ = ["DimensionResult", "intrinsic_dimension", "merge_duplicates"]
