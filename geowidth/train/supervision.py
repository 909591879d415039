"""Deep supervision and layer dropout in the manner of LayerSkip: what they ask of every step, and what they cost.

Places l = 0..L-1 are the blocks in the order in which states pass them (a repeated block has a place each time).

Early exits. The state after a place goes through the model's own final norm and output matrix, and the loss of those
logits has the weight e(l) C(t, l) / sum_i e(i) C(t, i) at step t. "layerskip": e(l) = e l (l + 1) / 2 before the last
place, of which e(L-1) = L - 1 + e (L - 2)(L - 1) / 2, with e the setting `exit_loss`; the first place weighs nothing.
"equal": e(l) = e before the last place and e(L-1) = 1: with e = 1 all heads weigh alike, and gradient fan-in is the
(L-l+1)(L-l+2)/2 of a deeply supervised stack, over L (geowidth.cascade.predicted_fan_in takes the weights). C says
which exits a step has, the last one always: "rotational" with period R those with l = t (mod R); "gradual" the last
first, one more every T / (2L) steps of T, so that all are there in the second half.

Layer dropout. At step t a sequence passes place l by with probability p(t, l) = S(t) D(l) p, with D(l) =
2^(l / (L-1)) - 1 from 0 at the first place to 1 at the last, p the setting `layer_dropout`, and S = 1, or "exponential"
2^(t / (T-1)) - 1. As in the paper every row of a batch is drawn by itself, rows that are left out cost nothing, and
what is kept is not scaled up. Draws depend on (seed, step, row, place) alone: not on processes, microbatches, or where
a training was resumed. Compiled blocks run over all rows, and those left out are put back.

Validation is of the plain model: all blocks, the last exit. The training loss that is reported is that of the last
exit too, in the same unit; the weighted sum, which is minimised, stands beside it as `objective`.

Source: Elhoushi et al., "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding" (arXiv 2404.16710),
section 4.1.
"""

import hashlib
import math

import numpy as np
import torch

from geowidth.models.config import ModelConfig, block_flops, training_flops
from geowidth.models.passes import TrainingPass
from geowidth.models.training import TrainingSettings
from geowidth.train.losses import Documents, model_inputs, summed_cross_entropy
from geowidth.train.world import World


def is_supervised(settings: TrainingSettings) -> bool:
    """Whether steps have early exits or layer dropout."""
    return bool(settings.exit_loss or settings.layer_dropout)


def exit_weights(settings: TrainingSettings, places: int, step: int) -> np.ndarray:
    """The weight of the loss after each of `places` places at a step (from 0): float64 (places,), their sum is 1."""
    weights = _all_weights(settings, places)
    weights *= [_has_exit(settings, places, place, step) for place in range(places)]
    return weights / weights.sum()


def _all_weights(settings, places):
    """e(l) of every place."""
    scale, places_before = settings.exit_loss, np.arange(places - 1, dtype=np.float64)
    if settings.exit_weights == "equal":
        return np.append(np.full(places - 1, scale), 1.0)
    early = scale * places_before * (places_before + 1) / 2
    return np.append(early, max(1, places - 1) + (early[-1] if places > 1 else 0.0))


def _has_exit(settings, places, place, step):
    """C(t, l) as a bool."""
    if place == places - 1 or settings.exit_curriculum == "none":
        return True
    if settings.exit_curriculum == "rotational":
        return (step - place) % settings.exit_period == 0
    return step >= _first_step(settings, places, place)


def _first_step(settings, places, place):
    """The first step at which the gradual curriculum has the exit of a place."""
    return math.ceil((places - 1 - place) * settings.steps / (2 * places))


def most_exits(config: ModelConfig, settings: TrainingSettings) -> int:
    """The most exits that any step has, the last one among them."""
    places = len(config.order)
    if settings.exit_curriculum == "rotational":
        steps = range(min(settings.steps, settings.exit_period))
    else:
        steps = range(settings.steps - 1, settings.steps)
    return max(int((exit_weights(settings, places, step) > 0).sum()) for step in steps)


def kept_logits(config: ModelConfig, settings: TrainingSettings) -> int:
    """How many exits' logits of a microbatch are in memory at once: all, but for those that are computed again."""
    return 1 if settings.recompute == "block" else most_exits(config, settings)


def dropout_rates(settings: TrainingSettings, places: int, step: int) -> np.ndarray:
    """The rate at which a sequence passes each place by at a step: float64 (places,)."""
    return settings.layer_dropout * _growth(settings, step) * _shape(places)


def _shape(places):
    """D(l) of every place."""
    return np.exp2(np.arange(places) / (places - 1)) - 1 if places > 1 else np.ones(1)


def _growth(settings, step):
    """S(t)."""
    if settings.layer_dropout_curriculum == "none":
        return 1.0
    return 2.0 ** (step / max(1, settings.steps - 1)) - 1


def kept_rows(settings: TrainingSettings, places: int, seed: int, step: int) -> torch.Tensor | None:
    """Which rows of the whole batch pass through each place at a step: bool (places, batch); None where all do."""
    rates = dropout_rates(settings, places, step)
    if not rates.any():
        return None
    digest = hashlib.sha256(f"{seed}/layer dropout/{step}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    drawn = generator.random((settings.batch, places)).T
    return torch.from_numpy(drawn >= rates[:, None])


class Supervision:
    """Early exits and layer dropout of one training: `at` gives what a step does."""

    def __init__(self, config: ModelConfig, settings: TrainingSettings, seed: int) -> None:
        self.places, self.settings, self.seed = len(config.order), settings, seed

    def at(self, step: int, rows: range) -> "SupervisedStep":
        """What step `step` (from 0) does. rows: which ones of the batch are this process's."""
        kept = kept_rows(self.settings, self.places, self.seed, step)
        own = None if kept is None else kept[:, rows.start : rows.stop]
        return SupervisedStep(exit_weights(self.settings, self.places, step), own, self.settings.compile)


class SupervisedStep:
    """One step: the weights of its exits, and the rows that pass through each place.

    weights: (places,), see exit_weights. kept: bool (places, own rows) or None. fixed: whether blocks run over all
    rows. `last` is the sum of the last exit's losses so far, float64.
    """

    def __init__(self, weights: np.ndarray, kept: torch.Tensor | None = None, fixed: bool = False) -> None:
        self.exits = tuple(int(place) for place in np.flatnonzero(weights))
        self.weights, self.kept, self.fixed = weights[list(self.exits)], kept, fixed
        self.last: torch.Tensor | float = 0.0

    def loss(
        self,
        model: torch.nn.Module,
        tokens: torch.Tensor,
        targets: torch.Tensor,
        device: torch.device,
        documents: Documents | None,
        first: int | None,
    ) -> torch.Tensor:
        """The weighted loss of all tokens of one piece, added up: a scalar on `device`.

        first: the number of its first row among this process's rows; None for a row that counts for nothing.
        """
        kept = None if self.kept is None or first is None else self.kept[:, first : first + len(tokens)]
        wanted = targets.to(device, non_blocking=True)
        passing = TrainingPass(lambda logits: summed_cross_entropy(logits, wanted), self.exits, kept, self.fixed)
        losses = model(*model_inputs(tokens, documents, device), passing=passing)
        self.last = self.last + losses[-1].detach().double()
        return torch.as_tensor(self.weights, dtype=losses.dtype).to(device) @ losses

    def last_loss(self, world: World) -> float:
        """The sum of the last exit's losses over all processes."""
        return float(world.sum(torch.as_tensor(self.last, dtype=torch.float64).to(world.device)))


def run_flops(config: ModelConfig, settings: TrainingSettings, steps: int | None = None) -> int:
    """FLOPs of the first `steps` steps (None: all), early exits and layer dropout at its rates counted.

    Otherwise as training_flops counts, which it is without them.
    """
    steps = settings.steps if steps is None else steps
    tokens = steps * settings.batch * config.context
    if not is_supervised(settings) or not steps:
        return training_flops(config, tokens)
    places = len(config.order)
    kept = 1 - mean_rates(settings, places, steps)
    blocks = sum(
        share * block_flops(config, layer, config.context) for share, layer in zip(kept, config.order, strict=True)
    )
    output = 2 * config.vocabulary * config.dimension * mean_exits(settings, places, steps)
    return round(3 * tokens * (blocks + output))


def mean_rates(settings: TrainingSettings, places: int, steps: int) -> np.ndarray:
    """The rates of `dropout_rates`, averaged over the first `steps` steps: float64 (places,)."""
    growth = 1.0
    if settings.layer_dropout_curriculum != "none":
        last = max(1, settings.steps - 1)
        growth = math.expm1(math.log(2) * steps / last) / math.expm1(math.log(2) / last) / steps - 1
    return settings.layer_dropout * growth * _shape(places)


def mean_exits(settings: TrainingSettings, places: int, steps: int) -> float:
    """Exits a step, the last one among them, averaged over the first `steps` steps."""
    weighed = np.flatnonzero(_all_weights(settings, places))
    return sum(_steps_with(settings, places, int(place), steps) for place in weighed) / steps


def _steps_with(settings, places, place, steps):
    """At how many of the first `steps` steps the exit of a place is there."""
    if place == places - 1 or settings.exit_curriculum == "none":
        return steps
    if settings.exit_curriculum == "rotational":
        return len(range(place % settings.exit_period, steps, settings.exit_period))
    return max(0, steps - _first_step(settings, places, place))
