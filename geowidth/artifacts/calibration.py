"""Fitted loss-versus-width curves: what `geowidth calibrate` writes and the calibrated schedule reads."""

from dataclasses import dataclass, field
from typing import Any

from geowidth import records
from geowidth.errors import UserError, choose
from geowidth.files import PathLike

# The range in which exponents are searched.
LEAST_EXPONENT, GREATEST_EXPONENT = 1e-2, 4.0
KIND, SCHEMA = "geowidth.calibration", 2  # schema 1 counted the noise of seeds as what width does


def bounded(low: float, high: float) -> bool:
    """Whether an interval of exponents ends within the range that was searched."""
    return low > LEAST_EXPONENT * 1.001 and high < GREATEST_EXPONENT * 0.999


@dataclass(frozen=True)
class Calibration:
    """Fitted loss-versus-width curves, as calibration.json holds them.

    widths: reference width of every layer. layers: for each {"slope", "difficulty", "exponent", "coefficient", their
    intervals, "determined" (whether the exponent is bounded), "explained", its interval}. shared: the fit with one
    exponent. explained: {"share", "interval"} of what free means explain, over all layers; None where nothing can be
    said. signals: Spearman of each of the nine signals with the fits, depth controlled. curves: one row a trained
    model. forms, lack_of_fit: how well w^(-a) does beside other forms.
    """

    preset: str
    widths: tuple[int, ...]
    layers: list[dict[str, Any]]
    shared: dict[str, Any]
    noise: float
    forms: dict[str, Any]
    lack_of_fit: dict[str, Any] | None
    explained: dict[str, Any]
    signals: dict[str, Any]
    curves: list[dict[str, Any]]
    sentence: str
    settings: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=records.environment)

    @property
    def exponents(self) -> list[float]:
        """Fitted a_l of every layer."""
        return [layer["exponent"] for layer in self.layers]

    @property
    def undetermined(self) -> list[int]:
        """Layers whose own exponent these data do not bound."""
        return [index for index, layer in enumerate(self.layers) if not layer.get("determined")]

    @property
    def shared_determined(self) -> bool:
        """Whether these data bound the exponent that all layers share."""
        interval = self.shared.get("exponent_interval")
        return bool(interval and bounded(*interval))

    @property
    def difficulty(self) -> list[float]:
        """Fitted e_l of every layer, each with its own exponent."""
        return [layer["difficulty"] for layer in self.layers]

    def to_json(self) -> dict[str, Any]:
        """The calibration as a dict for calibration.json."""
        return {"kind": KIND, "schema": SCHEMA, **{name: getattr(self, name) for name in self.__dataclass_fields__}}

    @classmethod
    def read(cls, path: PathLike) -> "Calibration":
        """Read calibration.json; a file that is none, or lacks a field or a number of a fit, is refused."""
        value = records.read_json(path, KIND, SCHEMA)
        if value["schema"] < SCHEMA:
            raise UserError(
                f"{path} has schema {value['schema']}, whose shares explained and p-values were wrong; run geowidth "
                "calibrate with the same settings and folder again: its trainings are kept"
            )
        for name in value:
            choose(f"field of {path}", name, ("kind", "schema", *cls.__dataclass_fields__))
        missing = [name for name in cls.__dataclass_fields__ if name not in value]
        if missing:
            raise UserError(f"{path} lacks {', '.join(missing)}; calibrate again with geowidth calibrate")
        try:
            rows = [*value["layers"], *({**value["shared"], "difficulty": d} for d in value["shared"]["difficulty"])]
            whole = all(isinstance(row[name], (int, float)) for row in rows for name in ("difficulty", "exponent"))
            whole &= len(rows) == 2 * len(value["widths"]) and all(type(w) is int and w > 0 for w in value["widths"])
            interval = value["shared"].get("exponent_interval") or (0.0, 1.0)
            whole &= len(interval) == 2 and all(type(bound) in (int, float) for bound in interval)
        except (AttributeError, KeyError, TypeError):
            whole = False
        if not whole:
            raise UserError(f"{path} lacks fits of some layers; calibrate again with geowidth calibrate")
        return cls(**{name: value[name] for name in cls.__dataclass_fields__} | {"widths": tuple(value["widths"])})
