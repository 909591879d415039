"""What slicing a model takes: memory counted, in one piece and block by block; time from timed passes of one block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from geowidth.plan.estimation import Estimate, parameter_count
from geowidth.plan.probe import run_probe
from geowidth.plan.training import runs_a_second
from geowidth.slicing.apply import bytes_needed

if TYPE_CHECKING:
    from geowidth.plan.models import ModelSizes

_START_SECONDS = 10.0  # imports, reading text and weights
_SCORES, _CORRECTION = 1, 1  # passes over the calibration text
_TIMED = 16  # windows that are run to time both models
_PROBED_TOKENS = 4  # the least that the probe of a measurement takes: its pass over a window is what is wanted


def estimate_slice(
    sizes: ModelSizes,
    *,
    calibration_windows: int = 32,
    windows: int = 32,
    probe: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Estimate:
    """The Estimate of `geowidth slice` for a model that a ModelSizes describes, widths by a rule that measures nothing.

    memory: of the model in one piece, with its sliced copy, all in float32. facts["streamed_bytes"]: with one block in
    memory at a time. facts["pass_seconds"]: a pass over the calibration text, of which `geometry` takes one more and
    `sensitivity` about half as many as there are layers.
    """
    config = sizes.config
    probe = run_probe if probe is None else probe
    block = replace(config, layers=1, widths=(max(config.widths),), layer_heads=None, vocabulary=256, tied=True)
    found = probe({"probe": "measurement", "model": block.to_json(), "sizes": [_PROBED_TOKENS]})
    window = found["window"] * config.layers
    tokens, width = calibration_windows * config.context, max(config.widths)
    gram = sum(2 * tokens * one * (one + config.dimension) for one in config.widths)
    correction = bytes_needed(width, config.dimension, tokens)
    parameters = parameter_count(config)
    outside = config.vocabulary * config.dimension
    one_block = (parameters - outside) // max(1, config.layers)
    passes = (_SCORES + _CORRECTION) * calibration_windows + 2 * windows + _TIMED
    flops = 2 * (parameters - outside) * passes * config.context + gram
    return Estimate(
        "slice",
        parameters,
        config.ffn_parameters,
        0,
        flops,
        found["peak_bytes"] + 2 * 4 * parameters + correction,
        2 * 4 * parameters,
        _START_SECONDS + passes * window + gram / gram_speed(config.dimension, width),
        ["a model folder", "slice.json"],
        {
            "calibration_tokens": tokens,
            "correction_bytes": correction,
            "streamed_bytes": found["peak_bytes"] + 4 * (outside + 2 * one_block) + correction,
            "pass_seconds": calibration_windows * window,
        },
    )


def gram_speed(dimension: int, width: int) -> float:
    """FLOP/s of a product as large as the correction's, in float32 on this machine as busy as it is now."""
    import torch

    rows = min(width, 2048)
    matrix = torch.ones(max(256, min(dimension, 1024)), rows)
    return 2 * matrix.shape[0] * rows**2 * runs_a_second(lambda: matrix.T @ matrix)
