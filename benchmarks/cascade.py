"""Inference of CascadeFormer's models beside uniform ones: time to the first token, time a token, throughput.

    python -m benchmarks.run cascade --rounds 7

Random weights in the shape of a preset (128m: 15 layers). A (heads in steps), F (FFN widths linear) and AF (both) have
the uniform model's parameters and FLOPs. "AF 0.8" spends four fifths of its heads and FFN widths; two uniform models
have as many parameters: one of narrower FFNs, one of fewer layers, whose FLOPs are AF 0.8's too. Which of them predicts
better is no question of this benchmark. "uniform, again" is the uniform model once more, last in every round.

All models and modes take turns within every round; ratios are taken round by round. Before anything is timed, logits
with kept keys and values are compared with those without.

Modes: "first token" (a prompt is read, logits after its last one), "a token" (one more, after that many). "request" is
their sum for 64 tokens. For a token the cache holds random keys and values, which cost what others do. Floor: FLOPs and
bytes that cannot be avoided, at the rates of a matrix product and of a matrix-vector product in the same rounds. Rates,
tokens a second and ratios are by CPU seconds where there is one thread, since others may use the machine; by the wall
clock where there are more.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.schema import Row
from benchmarks.timing import interleave, ratio
from geowidth.cascade.models import cascade_models, forward_flops, matched_uniform
from geowidth.errors import UserError
from geowidth.models import KeyValueCache, ModelConfig, TaperedTransformer, cache_bytes
from geowidth.models.generation import cache_of, cached_logits
from geowidth.models.presets import PRESETS
from geowidth.ops.threads import torch_threads

QUANTUM = 64
SHORTEST = 0.05  # seconds of a turn
REQUEST = 64  # new tokens of a request
SAME = {torch.float32: 1e-4, torch.bfloat16: 5e-2}  # of the largest logit: with a cache and without
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
AGAIN = "uniform, again"  # the same model, timed last: how far its ratio is from 1 says what a ratio is worth
SMALL = ModelConfig(64, 5, 64, 4, (128,) * 5, 64)
CEILINGS = ("product", "matrix-vector")


def add_arguments(parser):
    """Options beside the common ones of benchmarks.run."""
    parser.add_argument("--preset", default="128m", help="whose shape the models have (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="timed turns of each model (default: %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="texts side by side")
    parser.add_argument("--prompts", type=int, nargs="+", default=[256, 960], help="tokens that were read before")
    parser.add_argument("--first", type=int, nargs="*", default=[256], help="prompts whose first token is timed")
    parser.add_argument("--most-read", type=int, default=512, help="no first token of more tokens in all than this")
    parser.add_argument("--share", type=float, default=0.8, help="of the smaller models (default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of weights, keys and values")


def configs(config, share, quantum=QUANTUM):
    """{name: ModelConfig}: the uniform model, A, F, AF of its size, and three of a share of it."""
    found = {name: model.config for name, model in cascade_models(config, quantum=quantum).items()}
    small = cascade_models(config, quantum=quantum, share=share)["AF"].config
    narrow = matched_uniform(config, small).config
    shallow = matched_uniform(config, small, change="depth").config
    return found | {
        f"AF {share:g}": small,
        f"uniform, width {narrow.widths[0]}": narrow,
        f"uniform, {shallow.layers} layers": shallow,
    }


def built(configs, dtype, seed, device="cpu"):
    """{name: model} with random weights; all share one embedding, which is the same size in all."""
    torch.manual_seed(seed)
    models, embedding = {}, None
    for name, config in configs.items():
        model = TaperedTransformer(config, seed=None).to(device=device, dtype=dtype).eval().requires_grad_(False)
        embedding = model.embedding if embedding is None else embedding
        model.embedding = embedding
        for parameter in model.parameters():
            parameter.normal_(0, 0.02) if parameter.ndim > 1 else parameter.fill_(1)
        models[name] = model
    return models


@torch.inference_mode()
def check(models, tokens):
    """Refuse models whose logits with kept keys and values are others than those without."""
    for name, model in models.items():
        cache, whole = cache_of(model, *tokens.shape), model(tokens)
        parts = [cached_logits(model, part, cache, every=True) for part in tokens.split(5, 1)]
        off = float((torch.cat(parts, 1) - whole).abs().max() / whole.abs().max())
        if not off <= SAME[whole.dtype]:
            raise UserError(f"{name}: logits with a cache are off by {off:.2g} of the largest; nothing was timed")


@dataclass(frozen=True)
class Mode:
    """What is timed: `batch` texts whose first token after `read`, or next token, is wanted."""

    what: str
    batch: int
    read: int

    @property
    def name(self):
        return f"{self.what}, batch {self.batch}"

    def function(self, model, caches):
        """What one turn calls. caches: memory that models of equal heads share, by (heads, batch)."""
        first = self.what == "first token"
        tokens = torch.ones(self.batch, self.read if first else 1, dtype=torch.int64, device=model.embedding.device)
        cache = caches.of(model, self.batch)

        def turn():
            cache.length = 0 if first else self.read
            return cached_logits(model, tokens, cache)

        return turn

    def counts(self, config, itemsize):
        """(FLOPs, bytes) that cannot be avoided: products; weights once, keys and values of each text."""
        matrices = config.attention_parameters + config.ffn_parameters
        output = config.vocabulary * config.dimension
        weights = itemsize * (matrices + output)
        dtype = torch.float32 if itemsize == 4 else torch.bfloat16
        if self.what == "first token":
            blocks = forward_flops(config, self.read) - 2 * output
            return self.batch * (self.read * blocks + 2 * output), weights
        queries = sum(config.heads_by_layer) * config.head_dimension
        pairs = 4 * queries * (self.read + 1)
        kept = cache_bytes(config, self.batch, self.read + 1, dtype)
        return self.batch * (2 * (matrices + output) + pairs), weights + kept


class Caches:
    """One cache for every list of key heads and batch, filled with random keys and values."""

    def __init__(self, capacity):
        self.capacity, self._made = capacity, {}

    def of(self, model, batch):
        key = (model.config.key_heads_by_layer, batch)
        if key not in self._made:
            cache = KeyValueCache(model.config, batch, self.capacity, model.embedding.dtype, model.embedding.device)
            for slot in cache.slots:
                slot.keys.normal_()
                slot.values.normal_()
            self._made[key] = cache
        return self._made[key]


def modes(arguments, context):
    """The Modes of these arguments, those that fit the context."""
    tokens = [Mode("a token", b, min(read, context - 1)) for b in arguments.batches for read in arguments.prompts]
    first = [Mode("first token", b, min(read, context)) for b in arguments.batches for read in arguments.first]
    return [mode for mode in first if mode.batch * mode.read <= arguments.most_read] + list(dict.fromkeys(tokens))


def ceilings(dtype, quick, device="cpu"):
    """{name: (function, FLOPs, bytes)}: a matrix product, and a matrix-vector product over more than caches hold."""
    n, rows = (128, 1 << 10) if quick else (1536, 1 << 16)
    square = torch.randn(n, n, device=device).to(dtype)
    tall, vector = torch.randn(rows, 1024, device=device).to(dtype), torch.randn(1024, device=device).to(dtype)
    return {
        "product": (lambda: square @ square, 2 * n**3, 0),
        "matrix-vector": (lambda: tall @ vector, 0, tall.nbytes),
    }


@torch.inference_mode()
def run(arguments):
    """Rows of all modes: seconds, tokens a second, ratios to the uniform model, counts and floors."""
    config, rounds = PRESETS[arguments.preset].model, arguments.rounds
    if arguments.quick:
        config, rounds = SMALL, min(rounds, 3)
    dtype, found = DTYPES[arguments.dtype], modes(arguments, config.context)
    with torch_threads(arguments.threads):
        models = built(configs(config, arguments.share, 8 if arguments.quick else QUANTUM), dtype, arguments.seed)
        check(models, torch.arange(13)[None].repeat(2, 1))
        caches = Caches(config.context)
        models[AGAIN] = models["uniform"]
        candidates = {(m, name): m.function(model, caches) for m in found for name, model in models.items()}
        reference = ceilings(dtype, arguments.quick)
        candidates |= {name: function for name, (function, *_) in reference.items()}
        samples = interleave(candidates, rounds, least=SHORTEST)
    clock = clock_of(arguments)
    rates = {name: max(counts) / samples[name].quantiles(clock)["p50"] for name, (_, *counts) in reference.items()}
    shapes = {name: model.config for name, model in models.items()}
    return rows_of(shapes, found, samples, rates, arguments)


def clock_of(arguments):
    """The clock that tells models apart: "cpu" does not count others' work, but sums over threads."""
    return "cpu" if arguments.threads == 1 else "wall"


def rows_of(shapes, found, samples, rates, arguments):
    """Rows of what was timed."""
    clock = clock_of(arguments)
    itemsize = DTYPES[arguments.dtype].itemsize
    about = {"op": "cascade", "threads": arguments.threads}
    rows = [
        Row(provider=name, mode="ceiling", metric=metric, x_name="rate", x_value=rates[name], **about,
            **samples[name].quantiles(metric))
        for name in CEILINGS for metric in ("wall", "cpu")
    ]  # fmt: skip
    for mode in found:
        where = {**about, "mode": f"{mode.name}, {arguments.dtype}", "x_name": "read", "x_value": mode.read}
        for name, config in shapes.items():
            rows += timed(mode, name, samples, clock, where, note(config))
            flops, size = mode.counts(config, itemsize)
            floor = max(flops / rates["product"], size / rates["matrix-vector"])
            counted = {"flops": flops, "bytes": size, "floor": floor}
            rows += [Row(provider=name, metric=metric, p50=float(value), **where) for metric, value in counted.items()]
    return rows + requests(shapes, found, samples, clock, about, arguments.dtype)


def timed(mode, name, samples, clock, where, words):
    """Wall and CPU seconds, tokens a second, and the ratio of seconds to the uniform model's."""
    sample = samples[mode, name]
    rows = [Row(provider=name, metric=m, note=words, **where, **sample.quantiles(m)) for m in ("wall", "cpu")]
    if mode.what == "a token":
        rates = np.quantile(mode.batch / np.array(getattr(sample, clock)), [0.2, 0.5, 0.8])
        quantiles = dict(zip(("p20", "p50", "p80"), map(float, rates), strict=True))
        rows.append(Row(provider=name, metric="tokens a second", **where, **quantiles))
    if name != "uniform":
        over = ratio(samples, (mode, name), (mode, "uniform"), clock)
        rows.append(Row(provider=name, metric="ratio", **where, **over))
    return rows


def requests(shapes, found, samples, clock, about, dtype):
    """A prompt and REQUEST new tokens: seconds round by round, and their ratio to the uniform model's."""
    rows = []
    for first in (mode for mode in found if mode.what == "first token"):
        then = dataclasses.replace(first, what="a token")
        if then not in found:
            continue
        total = {
            name: np.array(getattr(samples[first, name], clock))
            + (REQUEST - 1) * np.array(getattr(samples[then, name], clock))
            for name in shapes
        }
        where = {**about, "mode": f"request, batch {first.batch}, {dtype}", "x_name": "read", "x_value": first.read}
        for name, seconds in total.items():
            for metric, values in ((clock, seconds), ("ratio", seconds / total["uniform"])):
                if (metric, name) != ("ratio", "uniform"):
                    quantiles = map(float, np.quantile(values, [0.2, 0.5, 0.8]))
                    numbers = dict(zip(("p20", "p50", "p80"), quantiles, strict=True))
                    rows.append(Row(provider=name, metric=metric, **where, **numbers))
    return rows


def note(config):
    """Sizes of a model in words."""
    kept = cache_bytes(config, 1, 1)
    heads = " ".join(map(str, config.heads_by_layer))
    return f"{config.parameters:,} parameters, {kept:,} float32 cache bytes a token, heads {heads}"
