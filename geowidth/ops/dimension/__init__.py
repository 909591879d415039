"""Intrinsic dimension of a cloud."""

from geowidth.ops.dimension.estimators import ESTIMATORS
from geowidth.ops.dimension.operation import MERGED_WITHIN, DimensionResult, intrinsic_dimension, merge_duplicates
from geowidth.ops.dimension.reference import dimension_reference

__all__ = [
    "ESTIMATORS",
    "MERGED_WITHIN",
    "DimensionResult",
    "dimension_reference",
    "intrinsic_dimension",
    "merge_duplicates",
]
