"""The Gromov-Wasserstein statistic."""

from geowidth.ops.gromov.operation import GromovResult, gromov_wasserstein

__all__ = ["GromovResult", "gromov_wasserstein"]
