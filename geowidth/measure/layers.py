"""The measurement of one layer, part by part, each in two steps.

A part is a set of the layer's tokens: all of them; those without the very large norms; the subsamples of the bands. Its
first step, `begin`, is done where the cloud lies: distances and the statistics made of them. Its second, `finish`, is
done on the host, from what was sent there meanwhile: the statistics of that place and the intrinsic dimension.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from geowidth.errors import UserError
from geowidth.measure import statistics
from geowidth.measure.layer_cloud import LayerCloud
from geowidth.measure.statistics import STATISTICS, large_norm_tokens
from geowidth.ops.dimension import intrinsic_dimension, merge_duplicates
from geowidth.ops.transfers import Transfer


@dataclass(frozen=True)
class Part:
    """role: "whole", "rest" (without very large norms) or "draw" (for the bands). rows: its tokens, None for all."""

    role: str
    rows: torch.Tensor | None
    geometries: tuple[str, ...]


@dataclass
class Begun:
    """A part after its first step: the statistics found so far, {geometry: {name: (value, details)}}."""

    part: Part
    cloud: LayerCloud
    found: dict


class LayerWork:
    """One layer's measurement: `parts`, of which each is begun and finished, and `result` of what that gave.

    clouds      Clouds
    settings    MeasureSettings; its device is where the first steps happen (None: where the clouds lie)
    threads     of the native kernels
    transfer    what brings a tensor to the host; see geowidth.ops.transfers.Transfer
    """

    def __init__(self, clouds, layer, settings, threads=1, transfer=Transfer):
        self.layer, self.settings, self.threads, self.transfer = layer, settings, threads, transfer
        self.precision = clouds.precision
        self.sides: Any = tuple(
            side[layer].to(settings.device or side.device) for side in (clouds.before, clouds.after)
        )
        self.large = {n: large_norm_tokens(s) for n, s in zip(("before", "after"), self.sides, strict=True)}
        self.parts = self._parts(clouds.tokens)

    def _parts(self, tokens):
        settings, device = self.settings, self.sides[0].device
        parts = [Part("whole", None, settings.geometries)]
        large = sorted({*self.large["before"], *self.large["after"]})
        if large and settings.statistics_in("raw"):
            keep = torch.ones(tokens, dtype=torch.bool)
            keep[large] = False
            parts.append(Part("rest", keep.nonzero()[:, 0].to(device), ("raw",)))
        for index in range(settings.bootstrap):
            generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + index)
            rows = torch.randperm(tokens, generator=generator)[: tokens // 2]
            parts.append(Part("draw", rows.to(device), settings.geometries))
        return parts

    def begin(self, part):
        """The first step of a part. Device memory is given back at its end, the layer's own with the last part."""
        settings = self.settings
        sides = self.sides if part.rows is None else (side[part.rows] for side in self.sides)
        before, after = sides
        cloud = LayerCloud(before, after, part.geometries, settings.radius, self.threads, self.transfer, self.precision)
        with self._named_errors():
            cloud.send(sent_matrices(settings, part.role, part.geometries))
            if sends_states(settings):
                cloud.send_states()
            found = {geometry: self._found("device", cloud, geometry) for geometry in part.geometries}
        cloud.release()
        if part is self.parts[-1]:
            self.sides = None
        return Begun(part, cloud, found)

    def _found(self, place, cloud, geometry):
        """{statistic: (value, details)} of those of one place that are asked for in a geometry."""
        asked = [STATISTICS[name] for name in self.settings.statistics_in(geometry)]
        return {statistic.name: statistic.of(cloud, geometry) for statistic in asked if statistic.place == place}

    def finish(self, begun):
        """The second step: {"work": {geometry: {statistic: value}}, "details": ..., and for the whole "dimension"}."""
        settings = self.settings
        result: dict[str, Any] = {"work": {}, "details": {}}
        with self._named_errors():
            for geometry in begun.part.geometries:
                found = begun.found[geometry] | self._found("host", begun.cloud, geometry)
                found = {name: found[name] for name in settings.statistics_in(geometry)}
                result["work"][geometry] = {name: value for name, (value, _) in found.items()}
                result["details"][geometry] = {name: more for name, (_, more) in found.items() if more}
            if begun.part.role == "whole":
                result["dimension"], result["details"]["dimension"] = self._dimension(begun.cloud)
        return result

    def _dimension(self, cloud):
        geometry = self.settings.geometries[0]
        distances, rounding = cloud.on_host(geometry)[0], cloud.rounding(geometry, 0)
        # In a small cloud there may be fewer neighbours than asked for.
        points = len(merge_duplicates(distances, rounding=rounding)[0])
        k = max(3, min(self.settings.neighbours, points - 1))
        record = intrinsic_dimension(distances, k=k, rounding=rounding).to_json()
        return record.pop("values"), {"geometry": geometry, **record}

    def result(self, finished):
        """What is written for the layer, from what `finish` gave for each of the parts."""
        roles: dict[str, Any] = {}
        for part, found in zip(self.parts, finished, strict=True):
            roles.setdefault(part.role, []).append(found)
        (whole,), rest = roles["whole"], roles.get("rest", roles["whole"])[0]
        details = {**whole["details"], "large_norm_tokens": self.large}
        # The raw statistics without the tokens of very large norm; None where raw was not asked for.
        details["raw_without_large_norms"] = dict(rest["work"]["raw"]) if "raw" in rest["work"] else None
        if self.settings.bootstrap:
            details["bands"] = self._bands([found["work"] for found in roles["draw"]])
        return {"work": whole["work"], "dimension": whole["dimension"], "details": details}

    def _bands(self, draws):
        """5 % and 95 % quantiles of every signal over subsamples of half the tokens, drawn without replacement.

        Resampling with replacement would plant duplicate points, which topology and dimension cannot take; the size of
        the subsample stands beside the band because some statistics change with it.
        """
        settings, quantiles = self.settings, [0.05, 0.95]
        size = len(next(part.rows for part in self.parts if part.role == "draw"))
        bands = {"subsample": size, "subsamples": settings.bootstrap, "quantiles": quantiles}
        for g in settings.geometries:
            names = settings.statistics_in(g)
            bands[g] = {s: np.quantile([d[g][s] for d in draws], quantiles).tolist() for s in names}
        return bands

    def _named_errors(self):
        return _Named(self.layer)


class _Named:
    """Puts the layer's number before the words of a UserError raised inside."""

    def __init__(self, layer):
        self.layer = layer

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        if isinstance(error, UserError):
            raise UserError(f"layer {self.layer}: {error}") from error


def sent_matrices(settings, role, geometries):
    """{geometry: 1 or 2}: whose distance matrices a part's second step reads, of the first side alone or of both."""
    sent = statistics.sent_matrices(settings.statistics, geometries)
    if role == "whole":  # of which the intrinsic dimension is taken
        sent.setdefault(settings.geometries[0], 1)
    return sent


def sends_states(settings):
    """Whether a part's second step reads the states themselves."""
    return any("states" in STATISTICS[name].reads for name in settings.statistics)


def part_bytes(tokens, settings, dimension=0):
    """Bytes of what waits on the host for the second step of a part of all tokens: matrices, and states if any."""
    matrices = sum(sent_matrices(settings, "whole", settings.geometries).values())
    return 8 * tokens**2 * matrices + 8 * 2 * tokens * dimension * sends_states(settings)


def measure_layer(clouds, layer, settings, threads=1):
    """All statistics of one layer: {"work": {geometry: {statistic: value}}, "dimension": {...}, "details": {...}}."""
    work = LayerWork(clouds, layer, settings, threads)
    return work.result([work.finish(work.begin(part)) for part in work.parts])
