"""What `geowidth slice` is asked for, checked before any work; also the settings by which a slicing is gone on with."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from geowidth.artifacts.schedule import Schedule
from geowidth.errors import UserError, choose, flag, seed_number, whole
from geowidth.files import PathLike
from geowidth.slicing.apply import checked_ridges
from geowidth.slicing.correction import RIDGES
from geowidth.slicing.healing import Healing
from geowidth.slicing.scores import NEURON_RULES
from geowidth.slicing.targets import Keep, Latency, Parameters, Target
from geowidth.slicing.widths import Asked

DTYPES = ("keep", "float32", "bfloat16", "float16")
FROM_SCHEDULE = "schedule"
KIND, SCHEMA = "geowidth.slice", 1  # of the record
RECORD_FILE = "slice.json"
CALIBRATION, TRAINING, JUDGED = "validation", "train", "test"  # splits: see geowidth.slicing.pipeline


@dataclass(frozen=True)
class SliceRequest:
    """What is asked for.

    target               Keep, Parameters or Latency (geowidth.slicing.targets), or a Schedule whose widths are taken
    by                   rule for widths (geowidth.slicing.widths); of no use beside a Schedule
    neurons              rule for neurons (geowidth.slicing.scores)
    correct              whether the down-projections are corrected by least squares
    ridge                of the correction, a share of the mean diagonal; of several, held-out calibration tokens choose
    bias                 whether the mean of what goes is put into the bias of the down-projection
    multiple, tensor_parallel, max_distinct_widths, floor
                         of the widths, see slice_widths
    healing              a Healing, or None
    corpus               text (geowidth.text.corpus.load_corpus)
    calibration_windows  of the validation split: what rules and correction look at
    windows              of the test split: what the losses are of
    context              tokens a window; None: the model's, at most 256
    seed                 of what is drawn
    dtype                of the written weights: keep (as the source), float32, bfloat16, float16
    device               where the model runs
    """

    target: Target | Schedule
    by: str = "uniform"
    neurons: str = "activation"
    correct: bool = True
    ridge: float | Sequence[float] = RIDGES
    bias: bool = False
    multiple: int = 1
    tensor_parallel: int = 1
    max_distinct_widths: int | None = None
    floor: Any = None
    healing: Healing | None = None
    corpus: PathLike = "stdlib"
    calibration_windows: int = 32
    windows: int = 32
    context: int | None = None
    seed: int = 0
    dtype: str = "keep"
    device: str = "cpu"

    def __post_init__(self):
        if isinstance(self.target, Schedule):
            object.__setattr__(self, "by", FROM_SCHEDULE)
        else:
            Asked.parse(self.by)
        choose("rule for neurons", self.neurons, NEURON_RULES)
        choose("dtype", self.dtype, DTYPES)
        for name in ("correct", "bias"):
            flag(name, getattr(self, name))
        for name, least in (("multiple", 1), ("tensor_parallel", 1), ("calibration_windows", 2), ("windows", 2)):
            whole(name.replace("_", " "), getattr(self, name), least)
        checked_ridges(self.ridge)
        seed_number("seed", self.seed)

    @property
    def width_options(self) -> dict[str, Any]:
        """Those of slice_widths."""
        names = ("multiple", "tensor_parallel", "max_distinct_widths", "floor", "seed")
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """The settings by name; a schedule by its widths, a cost table by its numbers."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        found["target"] = {"widths": self.target.widths} if isinstance(self.target, Schedule) else self.target.to_json()
        if isinstance(self.target, Latency):
            found["target"] |= {"table": self.target.table.to_json()}  # type: ignore[union-attr]
        found["healing"] = None if self.healing is None else vars(self.healing)
        found["corpus"] = str(self.corpus)
        return found


def target_of(
    keep: float | None = None,
    parameters: int | None = None,
    latency: float | None = None,
    cost: PathLike | None = None,
    schedule: PathLike | None = None,
) -> Target | Schedule:
    """The target, of which exactly one is named: a share, a number, milliseconds with a cost table, a schedule.json."""
    given = {"--keep": keep, "--parameters": parameters, "--latency": latency, "--schedule": schedule}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        what = f"{' and '.join(named)} came" if named else "how narrow is not said"
        raise UserError(f"{what}; give exactly one of {', '.join(given)}")
    if (latency is None) != (cost is None):
        raise UserError("--latency and --cost go together: milliseconds, and the table that geowidth cost measured")
    if keep is not None:
        return Keep(keep)
    if parameters is not None:
        return Parameters(parameters)
    if latency is not None and cost is not None:
        return Latency(latency, cost)
    assert schedule is not None
    return Schedule.read(schedule)
