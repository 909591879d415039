"""Entropic optimal transport by Sinkhorn iterations."""

from geowidth.ops.transport.operation import SinkhornResult, sinkhorn

__all__ = ["SinkhornResult", "sinkhorn"]
