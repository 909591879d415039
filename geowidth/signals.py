"""Names of signals: a signal is a statistic in a geometry, and everywhere the statistic is named first.

The nine signals are those that are measured when nothing is said. Nothing else is imported here, so that whoever only
reads files need not load torch.
"""

from collections.abc import Container

GEOMETRIES = ("raw", "spherical", "hyperbolic")
STATISTICS = ("shift", "gw", "topology")


def read_signal(text: str, geometries: Container[str]) -> tuple[str, str]:
    """(statistic, geometry) of "STATISTIC/GEOMETRY"; the other order is read too, as files of earlier versions have it.

    geometries   those that are known, which tells the two apart
    """
    first, _, second = str(text).partition("/")
    turned = second not in geometries and first in geometries
    return (second, first) if turned else (first, second)
