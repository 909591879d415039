"""Schedule: integer FFN widths, one a layer, with the budget they keep and what made them (schedule.json)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from geowidth import records
from geowidth.artifacts.schedule_checks import check_schedule, fits
from geowidth.errors import UserError, choose, shown, whole
from geowidth.files import PathLike, file_path

KIND = "geowidth.schedule"
SCHEMA = 1
_FIELDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "name": (str, "a text"),
    "widths": ((list, tuple), "a list with one whole number a layer"),
    "budget": (dict, "an object with unit, value and spent"),
    "quantum": (int, "a whole number"),
    "settings": (dict, "an object"),
    "details": (dict, "an object"),
    "environment": (dict, "an object"),
}
_ALL_FIELDS = ("kind", "schema", *_FIELDS, "base_width", "layers")


@dataclass(frozen=True)
class Schedule:
    """FFN widths of a model.

    widths: one positive int a layer. base_width: the uniform width of the same budget, or None. budget: {"unit",
    "value", "spent"} with spent <= value. quantum: every width is a multiple of it. settings: what was asked for.
    details: real widths, multiplier, active bounds, KKT residual, rounding gap, heads where there are any, and notes.

    Raises UserError for widths that are not whole numbers above 0, and for other fields that contradict them.
    """

    name: str
    widths: tuple[int, ...]
    base_width: int | None
    budget: dict[str, Any]
    quantum: int
    settings: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        _check_types(vars(self))
        widths = self.widths
        if not widths or any(isinstance(w, bool) or not isinstance(w, int) or w < 1 for w in widths):
            raise UserError(
                f"widths of schedule {self.name!r} are {shown(widths)}; a list of whole numbers above 0 is needed"
            )
        object.__setattr__(self, "widths", tuple(widths))
        check_schedule(self)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.widths)

    @property
    def heads(self) -> Sequence[int] | None:
        """Attention heads of every layer, or None where the schedule leaves attention alone."""
        return self.details.get("heads")

    def heads_for(self, reader: str, own: Sequence[int]) -> tuple[int, ...] | None:
        """The attention heads of every layer, for a model that has `own`; None where the schedule leaves them alone.

        reader: who builds the model. Raises UserError for more heads in all than the model has.
        """
        if self.heads is None:
            return None
        if sum(self.heads) > sum(own):
            raise UserError(
                f"schedule {shown(self.name)} has {sum(self.heads)} attention heads in all, the model of {reader} "
                f"{sum(own)}: allocate with heads={max(1, sum(own) // len(own))}"
            )
        return tuple(self.heads)

    @property
    def initial_scales(self) -> tuple[float, ...] | None:
        """Factors on the usual initial scale of every layer's down-projection, or None where it is left alone."""
        scales = self.details.get("initial_scales")
        return None if scales is None else tuple(scales)

    def widths_for(
        self,
        reader: str,
        *,
        layers: int,
        dimension: int,
        heads: int | None,
        projections: int = 3,
        biases: bool = False,
        initialises: bool = False,
    ) -> tuple[int, ...]:
        """The widths, for a model of these sizes whose `heads` attention heads are the same in every layer.

        reader: who builds the model, for the message. heads: None where it builds the schedule's `heads` too.
        initialises: whether it reads `initial_scales` too. Raises UserError for what the schedule states and such a
        model does not have: another number of layers, heads that differ from layer to layer, a budget counted for FFNs
        of other sizes, initial scales.
        """
        if self.initial_scales is not None and not initialises:
            raise UserError(
                f"schedule {shown(self.name)} states initial scales, which {reader} does not set; "
                "allocate without --initial-scale"
            )
        fits(self, reader, layers, dimension, heads, projections, biases)
        return self.widths

    def to_json(self) -> dict[str, Any]:
        """The schedule as a dict for schedule.json."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "name": self.name,
            "widths": list(self.widths),
            "base_width": self.base_width,
            "budget": self.budget,
            "quantum": self.quantum,
            "layers": self.layers,
            "settings": self.settings,
            "details": self.details,
            "environment": self.environment,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Schedule":
        """The schedule in a dict that `to_json` made; missing or wrong fields raise UserError."""
        for name in value:
            choose("field of a schedule", name, _ALL_FIELDS)
        value = {"quantum": 1, "settings": {}, "details": {}, "environment": {}, **value}
        _check_types(value)
        fields = {name: value[name] for name in _FIELDS} | {"base_width": value.get("base_width")}
        schedule = cls(**fields | {"widths": tuple(value["widths"])})
        if whole("layers", value.get("layers", schedule.layers), 1) != schedule.layers:
            raise UserError(
                f"schedule {schedule.name!r} says {value['layers']} layers but holds {schedule.layers} widths"
            )
        return schedule

    def write(self, path: PathLike) -> None:
        """Write schedule.json at `path`, atomically."""
        records.write_json(path, self.to_json())

    @classmethod
    def read(cls, path: PathLike) -> "Schedule":
        """Read a schedule.json; a file that is none is refused."""
        file_path("schedule", path)
        try:
            return cls.from_json(records.read_json(path, KIND, SCHEMA))
        except UserError as error:
            raise error if str(path) in str(error) else UserError(f"{path}: {error}") from None


def _check_types(values):
    """Refuse fields that are missing or of the wrong type."""
    for name, (kind, words) in _FIELDS.items():
        if not isinstance(values.get(name), kind):
            raise UserError(f"not a schedule: {name} is {shown(values.get(name))}; needed: {words}")
