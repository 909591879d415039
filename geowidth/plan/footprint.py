"""Memory of a training, counted: what lies there all the time, and what a microbatch keeps from forward to backward."""

from dataclasses import dataclass

from geowidth.models.config import ModelConfig
from geowidth.models.training import TrainingSettings
from geowidth.train.supervision import kept_logits


@dataclass(frozen=True)
class Footprint:
    """Bytes of one training in one process.

    weights, gradients: float32. moments: of the optimiser. activations: kept from forward to backward of a microbatch,
    weights rounded to the dtype of the products among them. logits: the output of a microbatch, its float32 form and
    its gradient. Buffers of libraries and what an allocator leaves between its blocks are not counted.
    """

    weights: int
    gradients: int
    moments: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.activations + self.logits


def footprint(config: ModelConfig, settings: TrainingSettings) -> Footprint:
    """The Footprint of training a model of `config` by `settings`."""
    parameters = 4 * config.parameters
    tokens = min(settings.batch, settings.microbatch) * config.context
    return Footprint(
        weights=parameters,
        gradients=parameters,
        moments=4 * _moments(config, settings),
        activations=kept_activations(config, settings, tokens) + _rounded_weights(config, settings),
        logits=kept_logits(config, settings)
        * tokens
        * config.vocabulary
        * (8 + (2 if settings.dtype == "bfloat16" else 0)),
    )


def _moments(config, settings):
    """Numbers that the optimiser keeps: two a parameter; Muon one, for matrices inside the blocks; SGD its momentum."""
    if settings.optimizer == "sgd":
        return config.parameters if settings.momentum else 0
    inner = config.attention_parameters + config.ffn_parameters
    return 2 * config.parameters - (inner if settings.optimizer == "muon" else 0)


def _rounded_weights(config, settings):
    """Bytes of the matrices in the dtype of the products, where that is not their own: backward needs them."""
    if settings.dtype == "float32":
        return 0
    return 2 * (config.attention_parameters + config.ffn_parameters + config.vocabulary * config.dimension)


def kept_activations(config: ModelConfig, settings: TrainingSettings, tokens: int) -> int:
    """Bytes kept for the backward pass of `tokens` tokens, logits left out.

    Counted as torch keeps them on a CPU; the fused norms of a GPU keep less. With recompute="block" it is the input of
    every block, and all of the one block that is computed again. A block that is applied several times keeps as often;
    layer dropout is counted as if all rows passed through.
    """
    blocks = [_block(config, settings, layer) for layer in config.order]
    residual = 4 * config.dimension
    kept = len(blocks) * residual + max(blocks) if settings.recompute == "block" else sum(blocks)
    mask = config.context if settings.document_mask else 0  # bool, one row a token
    norm = _norm(config, settings)
    early = (kept_logits(config, settings) - 1) * (norm - residual)  # what enters it, the next block keeps already
    return tokens * (kept + norm + early + 8 + mask)


def _block(config, settings, layer):
    """Bytes a token that one block keeps: two norms, attention, FFN."""
    size = 2 if settings.dtype == "bfloat16" else 4
    queries = config.heads_by_layer[layer] * config.head_dimension
    keys = config.key_heads_by_layer[layer] * config.head_dimension
    # Queries and keys as turned; queries, keys and values as projected; what attention gives; its log-sums.
    attention = size * (queries + keys) + size * (queries + 2 * keys) + size * queries
    attention += 4 * config.heads_by_layer[layer]
    mask = size * config.context if settings.document_mask else 0  # as numbers, made anew in every layer
    hidden = 0 if settings.recompute == "ffn" else size * (config.projections - 1) * config.widths[layer]
    return 2 * _norm(config, settings) + attention + mask + hidden


def _norm(config, settings):
    """Bytes a token that a norm keeps: its float32 input, that over its root mean square, the root, and its result."""
    return config.dimension * (8 + (2 if settings.dtype == "bfloat16" else 4)) + 4
