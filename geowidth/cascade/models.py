"""CascadeFormer's models made from a uniform one, and the uniform models that they are held against.

A    attention heads fall in discrete steps; FFNs stay
F    FFN widths fall on a straight line; heads stay
AF   both

Each spends at most what the uniform model does on what it tapers, so that with a share of 1 parameters and FLOPs are
the uniform model's, but for heads and quanta that are left over. A taper that spends less than the uniform model is
held against uniform models of as many parameters, or FLOPs: with narrower FFNs, or with fewer layers.

Source: Ahmad, Nam, Yun, "CascadeFormer" (arXiv 2606.26538). Its own sizes are not known here: the ends of the tapers
and the number of steps are arguments.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from geowidth.allocate.allocation import allocate
from geowidth.allocate.schedules.cascade import stepped_heads
from geowidth.artifacts.schedule import Schedule
from geowidth.errors import UserError, choose, number, whole
from geowidth.models.cache import cache_bytes
from geowidth.models.config import ModelConfig, training_flops

TAPERS = {"A": "heads", "F": "ffn", "AF": "both"}
MATCHED_BY, CHANGED = ("parameters", "flops"), ("width", "depth")
USUAL_STEPS = 4


@dataclass(frozen=True)
class CascadeModel:
    """A model of a comparison. schedule: what makes it from the uniform model (`geowidth train --schedule`); None where
    it has another number of layers."""

    name: str
    config: ModelConfig
    schedule: Schedule | None

    def facts(self, length: int | None = None, dtype: torch.dtype = torch.float32) -> dict[str, int]:
        """Parameters; FLOPs of a forward pass, a token, in sequences of `length` (default: the context); bytes of the
        keys and values of one token."""
        config = self.config
        found = {"parameters": config.parameters, "flops": forward_flops(config, length)}
        return found | {"cache_bytes": cache_bytes(config, 1, 1, dtype)}


def forward_flops(config: ModelConfig, length: int | None = None) -> int:
    """FLOPs of one forward pass of one token, see geowidth.models.config.training_flops."""
    return training_flops(config, 1, length) // 3


def cascade_models(
    config: ModelConfig,
    *,
    start: float = 1.5,
    end: float = 0.5,
    steps: int | None = None,
    quantum: int = 1,
    share: float = 1.0,
) -> dict[str, CascadeModel]:
    """{"uniform", "A", "F", "AF": CascadeModel} from a uniform ModelConfig.

    start, end: of the tapers, the first and the last layer over the mean. steps: levels of heads (default: see
    `fullest_steps`). quantum: FFN widths are multiples of it. share: how much of the uniform model's heads, and FFN
    parameters, is spent on what is tapered. Raises UserError for a config that is not uniform.
    """
    width = uniform_width(config)
    share = number("share", share, "numbers above 0, up to 1", lambda value: 0 < value <= 1)
    if steps is None:
        steps = fullest_steps(config, start, end, share)
    found = {"uniform": _uniform("uniform", config, width)}
    for name, taper in TAPERS.items():
        options: dict[str, Any] = {"taper": taper, "start": start, "end": end}
        if taper != "ffn":
            options |= {"heads": config.heads, "steps": steps, "share": share, "head_multiple": config.queries_per_key}
        spent = 1.0 if taper == "heads" else share
        schedule = allocate("cascade", quantum=quantum, **_budget(config, width, spent), **options)
        heads = None if schedule.heads is None else tuple(schedule.heads)
        found[name] = CascadeModel(name, replace(config, widths=schedule.widths, layer_heads=heads), schedule)
    return found


def uniform_width(config: ModelConfig) -> int:
    """The FFN width of all layers; UserError where layers differ, in widths or heads, or are repeated."""
    if len(set(config.widths)) > 1 or config.layer_heads is not None:
        raise UserError("the model has layers of different sizes; a uniform one is tapered: give that")
    config.refuse_repeats("a cascade")
    return config.widths[0]


def fullest_steps(config: ModelConfig, start: float = 1.5, end: float = 0.5, share: float = 1.0) -> int:
    """How many levels of heads leave the fewest heads unspent; of several numbers the one nearest to 4."""

    def unspent(steps):
        heads = stepped_heads(config.layers, config.heads, start, end, steps, config.queries_per_key, share)
        return config.layers * config.heads - int(heads.sum()), abs(steps - USUAL_STEPS), -steps

    return min(range(min(2, config.layers), config.layers + 1), key=unspent)


def matched_uniform(
    config: ModelConfig,
    target: ModelConfig,
    by: str = "parameters",
    change: str = "width",
    *,
    length: int | None = None,
    quantum: int = 1,
) -> CascadeModel:
    """`config`, which is uniform, with the width or the number of layers that brings it nearest to `target`.

    by: "parameters", or "flops" of a forward pass in sequences of `length` (default: the context). change: "width" of
    all FFNs, a multiple of `quantum`, or "depth". Raises UserError where heads and embedding alone exceed the target.
    """
    width = uniform_width(config)
    choose("matched by", by, MATCHED_BY)
    choose("change", change, CHANGED)
    cost = (lambda c: c.parameters) if by == "parameters" else (lambda c: forward_flops(c, length))

    def changed(count):
        if change == "width":
            return replace(config, widths=(count * quantum,) * config.layers)
        return replace(config, layers=count, widths=(width,) * count)

    quantum, wanted = whole("quantum", quantum, 1), cost(target)
    one, two = cost(changed(1)), cost(changed(2))  # a straight line in either
    count = round(1 + (wanted - one) / (two - one))
    if count < 1:
        raise UserError(f"no uniform model has as few {by} as {wanted:,}; one of the least {change} has {one:,}")
    name, found = f"uniform-{change}-{by}", changed(count)
    return _uniform(name, found, found.widths[0]) if change == "width" else CascadeModel(name, found, None)


def _uniform(name, config, width):
    return CascadeModel(name, config, allocate("uniform", **_budget(config, width, 1.0)))


def _budget(config, width, share):
    """Arguments of `allocate`: what `share` of FFNs of `width` in all layers takes."""
    sizes = {"layers": config.layers, "model_dimension": config.dimension, "projections": config.projections}
    if share == 1:
        return sizes | {"base_width": width}
    return sizes | {"budget": int(share * config.projections * config.dimension * width * config.layers)}
