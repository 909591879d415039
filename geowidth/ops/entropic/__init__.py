"""Entropic Gromov-Wasserstein."""

from geowidth.ops.entropic.operation import EntropicResult, entropic_gromov_wasserstein

__all__ = ["EntropicResult", "entropic_gromov_wasserstein"]
