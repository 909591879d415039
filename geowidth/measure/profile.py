"""The result of a measurement: one number per layer for every geometry and statistic."""

from dataclasses import asdict, dataclass, field

from geowidth import records
from geowidth.errors import UserError, choose, whole

KIND, SCHEMA = "geowidth.work", 1


@dataclass(frozen=True)
class WorkProfile:
    """Work of every FFN layer.

    work             work[geometry][statistic] = [one float per layer], in the unit of that geometry's distance
    dimension        dimension[estimator] = [one float per layer], of the cloud before the FFN
    widths           FFN width at which each layer was measured
    model_dimension  size of the residual stream
    projections      matrices per FFN (3 gated, 2 plain)
    details          per layer: certificates of gw, numbers of bars, tokens merged or flagged, bands when asked for
    settings         everything that made the numbers
    environment      versions and machine
    raw_without_large_norms
                     [statistic] = [one float per layer]: the raw geometry without the tokens whose norm, before or
                     after the FFN, exceeds 5 times the median (attention sinks), which raw distances otherwise measure
                     alone; equal to work["raw"] where a layer has none. details[layer]["large_norm_tokens"] lists them
    """

    work: dict
    dimension: dict
    widths: tuple[int, ...]
    model_dimension: int
    projections: int
    details: list
    settings: dict
    environment: dict = field(default_factory=records.environment)
    raw_without_large_norms: dict = field(default_factory=dict)

    @property
    def layers(self):
        return len(self.widths)

    def signal(self, statistic, geometry):
        """The list of one statistic under one geometry, first layer first."""
        choose("geometry", geometry, list(self.work))
        choose(f"statistic of the {geometry} geometry", statistic, list(self.work[geometry]))
        return list(self.work[geometry][statistic])

    def write(self, path):
        """Write work.json."""
        records.write_json(path, {"kind": KIND, "schema": SCHEMA, **asdict(self)})

    @classmethod
    def read(cls, path):
        """Read work.json; a file that lacks a field or has lists of unequal length is refused."""
        value = records.read_json(path, KIND, SCHEMA)
        names = list(cls.__dataclass_fields__)
        value.setdefault("raw_without_large_norms", {})  # files of earlier versions lack it
        missing = [name for name in names if name not in value]
        if missing:
            raise UserError(f"{path} lacks {', '.join(missing)}; measure again with geowidth measure")
        try:
            _check_lists(value)
        except (AttributeError, TypeError, UserError) as error:
            words = error if isinstance(error, UserError) else "it is not made of lists with one number a layer"
            raise UserError(f"{path}: {words}; measure again with geowidth measure") from error
        return cls(**{**{name: value[name] for name in names}, "widths": tuple(value["widths"])})


def _check_lists(value):
    """Refuse a record of work whose lists are not numbers, one a layer."""
    lists = {"widths": value["widths"]}
    for geometry, statistics in value["work"].items():
        lists |= {f"{geometry} {statistic}": signal for statistic, signal in statistics.items()}
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
            raise UserError(f"{name} holds {wrong!r}, which is no number")
    for width in value["widths"]:
        whole("a width", width, 0)
