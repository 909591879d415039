"""The result of a measurement: one number per layer for every geometry and statistic."""

from dataclasses import asdict, dataclass, field
from typing import Any

from geowidth import records
from geowidth.errors import UserError, choose, shown, whole
from geowidth.files import PathLike

KIND, SCHEMA = "geowidth.work", 1


@dataclass(frozen=True)
class WorkProfile:
    """Work of every FFN layer.

    work             work[geometry][statistic] = [one float per layer], in the unit of that geometry's distance
    dimension        dimension[estimator] = [one float per layer], of the cloud before the FFN
    widths           FFN width at which each layer was measured, of all its experts together
    model_dimension  size of the residual stream
    projections      matrices per FFN (3 gated, 2 plain)
    details          per layer: certificates of gw, numbers of bars, tokens merged or flagged, bands when asked for
    settings         everything that made the numbers
    environment      versions and machine
    raw_without_large_norms
                     [statistic] = [one float per layer]: the raw geometry without the tokens whose norm, before or
                     after the FFN, exceeds 5 times the median (attention sinks), which raw distances otherwise measure
                     alone; equal to work["raw"] where a layer has none. details[layer]["large_norm_tokens"] lists them
    experts          (experts, those that each token visits) of every layer, (1, 1) for a plain FFN; () where that is
                     not known, as in files of earlier versions
    """

    work: dict[str, dict[str, list[float]]]
    dimension: dict[str, list[float]]
    widths: tuple[int, ...]
    model_dimension: int
    projections: int
    details: list[dict[str, Any]]
    settings: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=records.environment)
    raw_without_large_norms: dict[str, list[float]] = field(default_factory=dict)
    experts: tuple[tuple[int, int], ...] = ()

    @property
    def layers(self) -> int:
        return len(self.widths)

    def signal(self, statistic: str, geometry: str) -> list[float]:
        """The list of one statistic under one geometry, first layer first."""
        choose("geometry", geometry, list(self.work))
        choose(f"statistic of the {geometry} geometry", statistic, list(self.work[geometry]))
        return list(self.work[geometry][statistic])

    def write(self, path: PathLike) -> None:
        """Write work.json."""
        records.write_json(path, {"kind": KIND, "schema": SCHEMA, **asdict(self)})

    @classmethod
    def read(cls, path: PathLike) -> "WorkProfile":
        """Read work.json; a file that lacks a field or has lists of unequal length is refused."""
        value = records.read_json(path, KIND, SCHEMA)
        names = list(cls.__dataclass_fields__)
        value = {"raw_without_large_norms": {}, "experts": [], **value}  # files of earlier versions lack these
        for name in value:
            choose(f"field of {path}", name, ["kind", "schema", *names])
        missing = [name for name in names if name not in value]
        if missing:
            raise UserError(f"{path} lacks {', '.join(missing)}; measure again with geowidth measure")
        try:
            _check_lists(value)
        except (AttributeError, TypeError, UserError) as error:
            words = error if isinstance(error, UserError) else "it is not made of lists with one number a layer"
            raise UserError(f"{path}: {words}; measure again with geowidth measure") from error
        fields = {name: value[name] for name in names} | {"experts": tuple(map(tuple, value["experts"]))}
        return cls(**fields | {"widths": tuple(value["widths"])})


_OBJECTS = ("work", "dimension", "settings", "environment", "raw_without_large_norms")


def not_converged(details: object) -> dict[tuple[str, str], list[int]]:
    """{(statistic, geometry): [layers]} whose search ended before its tolerance was met, from a record's `details`."""
    found: dict[tuple[str, str], list[int]] = {}
    for layer, parts in enumerate(details if isinstance(details, list) else []):
        for geometry, statistics in parts.items() if isinstance(parts, dict) else ():
            for name, facts in statistics.items() if isinstance(statistics, dict) else ():
                if isinstance(facts, dict) and facts.get("converged") is False:
                    found.setdefault((name, geometry), []).append(layer)
    return found


def _check_lists(value):
    """Refuse a record of work whose lists are not numbers, one a layer."""
    for name, kind in [(name, dict) for name in _OBJECTS] + [("details", list)]:
        if not isinstance(value[name], kind):
            raise UserError(f"{name} is {shown(value[name])}; needed: {'an object' if kind is dict else 'a list'}")
    lists = {"widths": value["widths"]}
    for geometry, statistics in value["work"].items():
        lists |= {f"{statistic} {geometry}": signal for statistic, signal in statistics.items()}
    lists |= {f"dimension {name}": numbers for name, numbers in value["dimension"].items()}
    layers = len(value["widths"])
    if not layers:
        raise UserError("it holds no layer")
    for name, least in (("model_dimension", 1), ("projections", 2)):
        whole(name, value[name], least)
    for name, numbers in lists.items():
        if len(numbers) != layers:
            raise UserError(f"{name} has {len(numbers)} layers, widths has {layers}")
        wrong = next((n for n in numbers if isinstance(n, bool) or not isinstance(n, (int, float))), None)
        if wrong is not None:
            raise UserError(f"{name} holds {wrong!r}, which is not a number")
    for width in value["widths"]:
        whole("a width", width, 0)
    _check_experts(value)


def _check_experts(value):
    """Refuse numbers of experts that are none, or that the widths of all experts together do not divide into."""
    pairs = value["experts"]
    if pairs and len(pairs) != len(value["widths"]):
        raise UserError(f"experts has {len(pairs)} layers, widths has {len(value['widths'])}")
    for width, pair in zip(value["widths"], pairs, strict=False):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise UserError(f"experts holds {shown(pair)}; needed: how many there are, and how many a token visits")
        count = whole("a number of experts", pair[0], 1)
        whole("a number of experts that a token visits", pair[1], 1, count)
        if width % count:
            raise UserError(f"width {width} does not divide into {count} experts")
