"""GeoWidth: measure how much geometric work each FFN layer of a transformer does, allocate widths by it under an exact
budget, train the tapered model, and say by paired seeds whether it helped.

    geowidth.ops        pairwise distances and Gromov-Wasserstein, each with its backends
    geowidth.measure    clouds of a model's FFN layers, nine work statistics, intrinsic dimension
    geowidth.allocate   width schedules under an exact budget
    geowidth.models     the transformer with one FFN width per layer
    geowidth.train      corpus, training loop, paired comparison
    geowidth.cascade    gradient fan-in, gradient ledger, pruning of blocks
    geowidth.diagnose   loss-versus-width curves of trained models
    geowidth.plan       what a task takes, before any work
    geowidth.report     one HTML page, CSV and JSON of a run folder

The same steps from the command line: ``geowidth --help``.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see; at run time each loads when it is first used
    from geowidth import allocate as allocate
    from geowidth import cascade as cascade
    from geowidth import diagnose as diagnose
    from geowidth import geometry as geometry
    from geowidth import measure as measure
    from geowidth import models as models
    from geowidth import ops as ops
    from geowidth import plan as plan
    from geowidth import report as report
    from geowidth import train as train

try:
    __version__ = version("geowidth")
except PackageNotFoundError:  # a source tree on sys.path, not installed
    __version__ = "0+unknown"

_SUBPACKAGES = ("allocate", "cascade", "diagnose", "geometry", "measure", "models", "ops", "plan", "report", "train")


def __getattr__(name: str) -> ModuleType:
    # Subpackages load on first use: `import geowidth` alone costs milliseconds.
    if name in _SUBPACKAGES:
        return import_module(f"geowidth.{name}")
    raise AttributeError(f"module 'geowidth' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_SUBPACKAGES])
