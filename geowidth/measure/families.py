"""Model families as data: where a model keeps its FFN sub-blocks, and which states to watch around them.

A site is a module's path inside a block plus the side to watch: "mlp:output" is what `block.mlp` returns,
"ln_2:input" what `block.ln_2` is given, ":output" what the block itself returns. "mlp|block_sparse_moe:output" names
the module of either of two library versions. A module outside the package adds a family with
`FAMILIES.register(Family(...))`; capture checks the residual identity of the family on the first batch, so a wrong one
is refused instead of measured.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import nn

from geowidth.errors import UserError, choose, shown
from geowidth.exchange.shape import GATE_FIELD, TAPERED
from geowidth.measure.widths import inner_width
from geowidth.registry import Registry

SEQUENTIAL = "sequential"  # stream + ffn(norm(stream)), after attention has been added
PARALLEL = "parallel"  # stream + attention(norm(stream)) + ffn(norm(stream)), one sum for both
POST_NORM = "post-norm"  # norm(stream + ffn(stream)): the sum before the norm is what the FFN did to the stream
FORMS = (SEQUENTIAL, PARALLEL, POST_NORM)

LLAMA_TYPES = "llama mistral ministral qwen2 qwen3 gemma smollm3 phi3 nemotron-nas"


@dataclass(frozen=True)
class Family:
    """How to find and read the FFN sub-blocks of one kind of model.

    name         shown in results and messages
    layers       paths of the list of blocks inside the model, the first that exists is taken
    before       site of the residual stream that enters the FFN sub-block, before its norm
    added        site of what the sub-block adds to the stream, after any norm of its own
    whole        site of the sum in which `added` appears
    others       sites of what else stands in that sum (the attention of a parallel block)
    down         path of the module that maps the FFN's inner features back to the stream
    inner        paths of the modules that make the inner features: gate and up, up alone, or one for both (phi3)
    form         sequential, parallel or post-norm
    causal       whether a token's states depend only on what stands before it
    projections  matrices per FFN: 3 when gated, else 2
    types        values of `model.config.model_type`, blank-separated
    when         further condition on the config
    multiplier   name of a config entry by which `added` is multiplied before it is added
    """

    name: str
    layers: tuple[str, ...] = ("model.layers", "layers", "model.language_model.layers", "language_model.layers")
    before: str = "post_attention_layernorm:input"
    added: str = "mlp:output"
    whole: str = ":output"
    others: tuple[str, ...] = ()
    down: str = "mlp.down_proj"
    inner: tuple[str, ...] = ("mlp.gate_up_proj|mlp.gate_proj", "mlp.gate_up_proj|mlp.up_proj")
    form: str = SEQUENTIAL
    causal: bool = True
    projections: int = 3
    types: str = ""
    when: Callable[[Any], bool] = lambda config: True
    multiplier: str | None = None

    def __post_init__(self):
        choose(f"form of family {self.name!r}", self.form, FORMS)
        for text in (self.before, self.added, self.whole, *self.others):
            side = str(text).partition(":")[2]
            if side not in ("input", "output"):
                raise UserError(f"family {self.name!r} watches {shown(text)}; allowed: PATH:input or PATH:output")

    def matches(self, model: nn.Module) -> bool:
        """Whether `model` is of this family, by the model type its config states."""
        config = getattr(model, "config", None)
        return model_type(config) in self.types.split() and bool(self.when(config))

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The model's blocks, first layer first."""
        return list(_first(model, self.layers, f"the list of layers of a {self.name} model"))

    def experts(self, model: nn.Module) -> list[tuple[int, int]]:
        """(experts, those of them that each token visits) of every layer's FFN; 1 and 1 where it is a plain one."""
        if "experts" not in self.down:
            return [(1, 1)] * len(self.blocks(model))
        active = int(getattr(model.config, "num_experts_per_tok", 1))
        counts = [_experts(_first(block, self.down.split("|"), "the experts")) for block in self.blocks(model)]
        return [(count, min(active, count)) for count in counts]

    def projections_of(self, block: nn.Module) -> tuple[list[nn.Module], nn.Module]:
        """(the modules that make the inner features, each once; the one that reads them) of a block's plain FFN."""
        inner = [_first(block, path.split("|"), f"the projections of a {self.name} FFN") for path in self.inner]
        return list({id(module): module for module in inner}.values()), _first(block, self.down.split("|"), "the FFN")

    def scale(self, model: nn.Module) -> float:
        """The number `added` is multiplied by."""
        return float(getattr(model.config, self.multiplier)) if self.multiplier else 1.0

    def widths(self, model: nn.Module) -> tuple[int, ...]:
        """FFN width of every layer; of all experts together where there are several."""
        stated = list(getattr(getattr(model, "config", None), "intermediate_sizes", None) or ())  # of our own exports
        return tuple(
            0 if stated[layer : layer + 1] == [0] else self._width(layer, block)
            for layer, block in enumerate(self.blocks(model))
        )

    def matrices(self, model: nn.Module) -> int:
        """Matrices per FFN of a model of this family: of our own exports, also without its gate."""
        return 2 if getattr(getattr(model, "config", None), GATE_FIELD, True) is False else self.projections

    def _width(self, layer, block):
        down = _first(block, self.down.split("|"), "the FFN")
        return inner_width(down, f"the down-projection of layer {layer}")


class _OwnFamily(Family):
    """Our own model, told by its class: its config carries no model type."""

    def matches(self, model: nn.Module) -> bool:
        home = sys.modules.get("geowidth.models.transformer")  # not loaded: then `model` is no instance of it either
        return home is not None and isinstance(model, home.TaperedTransformer)

    def widths(self, model: Any) -> tuple[int, ...]:
        return tuple(model.config.widths)

    def matrices(self, model: Any) -> int:
        return model.config.projections


BERT_PATHS = ("encoder.layer", "bert.encoder.layer", "roberta.encoder.layer", "electra.encoder.layer")
GEMMA: dict[str, Any] = {"before": "pre_feedforward_layernorm:input", "added": "post_feedforward_layernorm:output"}
OPT: dict[str, Any] = {
    "layers": ("model.decoder.layers", "decoder.layers"),
    "added": "fc2:output",
    "down": "fc2",
    "inner": ("fc1",),
    "projections": 2,
}
NEOX: dict[str, Any] = {
    "layers": ("gpt_neox.layers", "layers"),
    "down": "mlp.dense_4h_to_h",
    "inner": ("mlp.dense_h_to_4h",),
    "projections": 2,
}

_BUILT_IN = [
    _OwnFamily("geowidth", layers=("blocks",), before="ffn_norm:input", added="ffn:output"),
    Family("llama", types=LLAMA_TYPES),
    Family("granite", types="granite", multiplier="residual_multiplier"),
    Family("gemma", types="gemma2 gemma3 gemma3_text", **GEMMA),
    Family("olmo2", types="olmo2 olmo3", before="mlp:input", added="post_feedforward_layernorm:output"),
    Family(
        "mixtral",
        types="mixtral olmoe qwen3_moe",
        added="mlp|block_sparse_moe:output",
        down="mlp.experts|block_sparse_moe.experts",
    ),
    Family(
        "phi",
        types="phi",
        layers=("model.layers", "layers"),
        before="input_layernorm:input",
        others=("self_attn:output",),
        down="mlp.fc2",
        inner=("mlp.fc1",),
        form=PARALLEL,
        projections=2,
    ),
    Family(
        "gpt2",
        types="gpt2",
        layers=("transformer.h", "h"),
        before="ln_2:input",
        down="mlp.c_proj",
        inner=("mlp.c_fc",),
        projections=2,
    ),
    Family(
        "gpt_neox",
        types="gpt_neox",
        when=lambda config: config.use_parallel_residual,
        others=("attention:output",),
        form=PARALLEL,
        **NEOX,
    ),
    Family("gpt_neox", types="gpt_neox", when=lambda config: not config.use_parallel_residual, **NEOX),
    Family("opt", types="opt", when=lambda c: c.do_layer_norm_before, before="final_layer_norm:input", **OPT),
    Family(
        "opt",
        types="opt",
        when=lambda config: not config.do_layer_norm_before,
        before="fc1:input",
        whole="final_layer_norm:input",
        form=POST_NORM,
        **OPT,
    ),
    Family(
        "bert",
        types="bert roberta xlm-roberta camembert electra",
        layers=BERT_PATHS,
        before="intermediate:input",
        added="output.dense:output",
        whole="output.LayerNorm:input",
        down="output.dense",
        inner=("intermediate.dense",),
        form=POST_NORM,
        causal=False,
        projections=2,
    ),
    Family(
        "distilbert",
        types="distilbert",
        layers=("transformer.layer", "distilbert.transformer.layer"),
        before="ffn:input",
        added="ffn:output",
        whole="output_layer_norm:input",
        down="ffn.lin2",
        inner=("ffn.lin1",),
        form=POST_NORM,
        causal=False,
        projections=2,
    ),
]

FAMILIES = Registry("model family", Family)
for _family in _BUILT_IN:  # some have a second form under the same name
    _second = any(one.name == _family.name for one in _BUILT_IN[: _BUILT_IN.index(_family)])
    FAMILIES.register(_family, f"{_family.name}-{_family.form}" if _second else _family.name)


def _experts(down):
    """How many experts there are: in one tensor (experts, d, width), or as modules in a list."""
    fused = getattr(down, "down_proj", None)
    return fused.shape[0] if fused is not None else len(down)


def family_of(model):
    """The Family of a model; an unknown model is refused with the types of those that are known."""
    found = {name: family for name, family in FAMILIES.items() if family.matches(model)}
    if len(found) > 1:
        raise UserError(
            f"a {type(model).__name__} is of the families {', '.join(found)}; say which by capture(family=...)"
        )
    if found:
        return next(iter(found.values()))
    kind = model_type(getattr(model, "config", None))
    raise _unknown(f"cannot capture from a {type(model).__name__}{f' (model_type {kind!r})' if kind else ''}")


def model_type(config):
    """The model type that a config states, of an export of ours that of its family; None for one that states none."""
    kind = getattr(config, "model_type", None)
    return kind.removeprefix(TAPERED) if isinstance(kind, str) and kind else None


def check_known(kind, where):
    """Refuse a model type of which no Family is known, before anything of the model is built.

    kind    model_type of config.json. where: what is refused, for the message
    """
    if kind not in known_types():
        raise _unknown(f"{where} cannot be loaded to capture from: its model_type is {kind!r}")


def known_types():
    """{model_type: Family}; where a type has two forms, one of them."""
    return {name: family for family in FAMILIES.values() for name in family.types.split()}


def _unknown(what):
    known = ", ".join(sorted(known_types()))
    return UserError(
        f"{what}; known: {known}, and models by geowidth train; for another, give capture(family=Family(...))"
    )


def site(block, text):
    """(module, side) of a site like "mlp:output" in a block."""
    path, _, side = text.partition(":")
    return _first(block, path.split("|"), f"the module {path!r} of a {type(block).__name__}"), side


def _first(module, paths, what):
    for path in paths:
        try:
            return attrgetter(path)(module) if path else module
        except AttributeError:
            continue
    raise UserError(f"cannot find {what}: looked for {', '.join(paths)} in a {type(module).__name__}")
