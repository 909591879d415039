"""The FFNs of a model as lists of neurons: of ours, and of every plain or gated family of geowidth.measure.FAMILIES.

A neuron is one entry of the hidden vector h, the input of the down-projection: a row of gate and up, with its entry of
their biases, and a column of down. How a family stores them (nn.Linear, GPT-2's Conv1D, gate and up in one matrix, our
[width, d]) is known here and nowhere else in this package.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from geowidth.cascade.blocks import other_forwards
from geowidth.errors import UserError
from geowidth.measure.families import Family, family_of
from geowidth.measure.models import backbone_of, input_device, takes, unwrapped
from geowidth.models.ffn import FeedForward
from geowidth.ops.activation.functions import activation_function

Reader = Callable[[int, torch.Tensor], torch.Tensor | None]
COUNTS = {0: ("out_features", "nf"), 1: ("in_features", "nx")}  # what modules state of their outputs and inputs


@dataclass(frozen=True)
class Weight:
    """A parameter with one entry a neuron along `axis`, `stacked` times one after the other (2: gate above up).

    side: 0 where neurons are the module's outputs, 1 where they are its inputs
    """

    module: nn.Module
    name: str
    axis: int
    side: int
    stacked: int = 1

    @property
    def parameter(self) -> Any:
        return getattr(self.module, self.name)

    def take(self, indices: torch.Tensor) -> None:
        """Keep the neurons `indices` alone."""
        old = self.parameter
        if self.stacked > 1:
            width = old.shape[self.axis] // self.stacked
            indices = torch.cat([indices + part * width for part in range(self.stacked)])
        self.put(old.detach().index_select(self.axis, indices.to(old.device)))
        for count in COUNTS[self.side]:
            if isinstance(vars(self.module).get(count), int):
                setattr(self.module, count, len(indices))

    def put(self, values: torch.Tensor) -> None:
        """Replace the parameter by one of these values, in its dtype."""
        old = self.parameter
        new = nn.Parameter(values.to(old.dtype).contiguous(), requires_grad=old.requires_grad)
        setattr(self.module, self.name, new)


class FFN:
    """The FFN of one layer.

    layer     its number
    name      of its down-projection, for messages
    rows      the weights that make h: gate, up and their biases
    down      the weight that reads it; None, as `home`, in a layer without an FFN, whose width is 0
    home      the module whose input h is, or our FeedForward
    bias      name of the parameter of `home` that is added to the output, whether there is one or not
    """

    def __init__(self, layer: int, name: str, rows: Sequence[Weight], down: Weight | None, bias: str = "bias") -> None:
        self.layer, self.name, self.rows, self.down, self.bias = layer, name, tuple(rows), down, bias
        self.home = None if down is None else down.module

    @property
    def width(self) -> int:
        return 0 if self.down is None else self.down.parameter.shape[self.down.axis]

    @property
    def least(self) -> int:
        """The smallest width that its modules can compute: GPT-2's Conv1D cannot have none."""
        return int(type(self.home).__name__ == "Conv1D")

    @property
    def has_bias(self) -> bool:
        return self.home is not None and getattr(self.home, self.bias, None) is not None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those of all its weights, and the bias of the output if there is one."""
        found = [weight.parameter for weight in (*self.rows, *([self.down] if self.down else ()))]
        return [*found, getattr(self.home, self.bias)] if self.has_bias else found

    def columns(self) -> torch.Tensor:
        """The down-projection as (d, width), a view."""
        assert self.down is not None, "a layer without an FFN has no columns"
        weight = self.down.parameter.detach()
        return weight if self.down.axis else weight.T

    def put_columns(self, values: torch.Tensor) -> None:
        """Replace the down-projection by one of shape (d, width)."""
        assert self.down is not None, "a layer without an FFN has no columns"
        self.down.put(values if self.down.axis else values.T)

    def add_bias(self, values: torch.Tensor) -> None:
        """Add (d,) to the bias of the output, which is made where there is none."""
        old = getattr(self.home, self.bias)
        weight = self.columns()
        total = values if old is None else old.detach().to(values.dtype) + values
        needs = self.parameters[-1].requires_grad
        setattr(self.home, self.bias, nn.Parameter(total.to(weight.dtype), requires_grad=needs))

    def column_norms(self) -> torch.Tensor:
        """Euclidean norms of the down-projection's columns, float64 (width,) on the CPU."""
        if self.down is None:
            return torch.zeros(0, dtype=torch.float64)
        return torch.linalg.vector_norm(self.columns(), dim=0, dtype=torch.float64).cpu()

    def row_norms(self) -> torch.Tensor:
        """Product of the Euclidean norms of a neuron's rows of gate and up, each with its bias; float64, on the CPU."""
        squares: dict[tuple[int, int], torch.Tensor] = {}
        for weight in self.rows:
            values = weight.parameter.detach()
            values = values.T if weight.axis else values
            for part, rows in enumerate(values[:, None].flatten(1).chunk(weight.stacked)):
                matrix = (id(weight.module) if weight.module is not self.home else weight.name.startswith("gate"), part)
                square = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square().cpu()
                squares[matrix] = squares.get(matrix, 0) + square
        return torch.stack([*squares.values(), torch.ones(self.width, dtype=torch.float64)]).prod(0).sqrt()

    def keep(self, indices: torch.Tensor) -> None:
        """Keep the neurons `indices`, ascending int64; all of them: nothing is touched."""
        if len(indices) < self.width:
            for weight in (*self.rows, *([self.down] if self.down else ())):
                weight.take(indices)

    def modules(self) -> list[nn.Module]:
        return list({id(weight.module): weight.module for weight in (*self.rows, *filter(None, [self.down]))}.values())

    @contextlib.contextmanager
    def reading(self, read: Callable[[torch.Tensor], torch.Tensor | None]) -> Iterator[None]:
        """Inside, `read(h)` is called in every forward pass, h as the model has it; what it gives, if not None, goes on
        in its place, through the down-projection as it is by then."""
        if self.home is None:
            yield
        elif isinstance(self.home, FeedForward):
            with _opened(self.home, read):
                yield
        else:
            handle = self.home.register_forward_pre_hook(lambda _, given: _replaced(given, read(given[0])))
            try:
                yield
            finally:
                handle.remove()


def _replaced(given, new):
    return None if new is None else (new, *given[1:])


def _opened(module, read):
    """Our FeedForward with its hidden vector made, which its kernels keep to themselves."""
    return other_forwards({module: lambda x: _forward_with_hidden(module, x, read)})


def _forward_with_hidden(module, x, read):
    cast = module._cast
    apply = activation_function(module.activation, module.gate is not None).apply
    gate = None if module.gate is None else functional.linear(x, cast(module.gate), cast(module.gate_bias))
    h = functional.linear(x, cast(module.up), cast(module.up_bias))
    h = apply(h) if gate is None else apply(gate) * h
    new = read(h)
    return functional.linear(h if new is None else new, cast(module.down).T, cast(module.down_bias))


class FFNs(Sequence[FFN]):
    """The FFNs of `model`, first layer first. family: its Family. dimension: of its stream."""

    def __init__(self, model: nn.Module, family: Family, layers: Sequence[FFN]) -> None:
        self.model: Any = model
        self.family, self.layers = family, tuple(layers)

    def __getitem__(self, layer):
        return self.layers[layer]

    def __len__(self):
        return len(self.layers)

    @property
    def widths(self) -> tuple[int, ...]:
        """Neurons of every layer, as they are now."""
        return tuple(ffn.width for ffn in self.layers)

    @property
    def dimension(self) -> int:
        return next(ffn.columns().shape[0] for ffn in self.layers if ffn.down is not None)

    @property
    def projections(self) -> int:
        """Matrices an FFN: 3 when gated, else 2."""
        return self.family.matrices(self.model)

    @property
    def biases(self) -> bool:
        """Whether every FFN has a bias on its output, so that a checkpoint has a place for one."""
        return all(ffn.has_bias for ffn in self.layers if ffn.down is not None)

    def state_widths(self) -> None:
        """Write the widths into the model's config, where it lists them layer by layer."""
        config: Any = getattr(self.model, "config", None)
        if hasattr(config, "widths"):
            self.model.config = replace(config, widths=self.widths)
        elif getattr(config, "intermediate_sizes", None):
            config.intermediate_sizes = list(self.widths)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Afterwards every parameter is the object it was, as are the sizes that modules and config state."""
        restore = self.restorer()
        try:
            yield
        finally:
            restore()

    def restorer(self) -> Callable[[], None]:
        """What brings back, when it is called, the parameters and the sizes as they are now."""
        modules = [module for ffn in self.layers for module in ffn.modules()]
        names = [name for pair in COUNTS.values() for name in pair]
        saved = [
            (dict(module._parameters), {n: vars(module)[n] for n in names if n in vars(module)}) for module in modules
        ]
        config: Any = getattr(self.model, "config", None)
        sizes = getattr(config, "intermediate_sizes", None)

        def restore():
            for module, (parameters, counts) in zip(modules, saved, strict=True):
                module._parameters.clear()
                module._parameters.update(parameters)
                vars(module).update(counts)
            if config is not None:
                self.model.config = config
            if sizes:
                config.intermediate_sizes = sizes

        return restore

    @contextlib.contextmanager
    def reading(self, read: Reader) -> Iterator[None]:
        """Inside, `read(layer, h)` is called in every forward pass of the model; see FFN.reading."""
        with contextlib.ExitStack() as stack:
            for ffn in self.layers:
                stack.enter_context(ffn.reading(partial(read, ffn.layer)))
            yield

    def run(self, tokens: torch.Tensor, read: Reader, last: int | None = None) -> None:
        """One forward pass of (batch, length) token ids, in which `read(layer, h)` is called; see FFN.reading.

        last: the pass ends once this layer has been read (default: the last with an FFN): no logits are made. A layer
        that the model applies several times is read each time, the last one once.
        """
        wanted = [ffn.layer for ffn in self.layers if ffn.down is not None]
        last = max(wanted, default=-1) if last is None else last
        seen: set[int] = set()
        with contextlib.ExitStack() as stack, contextlib.suppress(_Enough):
            for ffn in self.layers[: last + 1]:
                stack.enter_context(ffn.reading(_reader(ffn.layer, read, last, seen)))
            runner = backbone_of(self.model)
            given = {"use_cache": False} if takes(runner, "use_cache") else {}
            runner(tokens.to(input_device(self.model)), **given)
        if missed := [layer for layer in wanted if layer <= last and layer not in seen]:
            raise UserError(
                f"layer {missed[0]} of {type(self.model).__name__} ran without passing through its "
                f"{self.family.name} FFN; give the model itself, not compiled"
            )


class _Enough(Exception):
    """The pass has come as far as it was wanted."""


def _reader(layer, read, last, seen):
    def call(h):
        seen.add(layer)
        new = read(layer, h)
        if layer == last:
            raise _Enough
        return new

    return call


def ffns_of(model: nn.Module, family: Family | None = None) -> FFNs:
    """The FFNs of a model of ours or of a family of geowidth.measure.FAMILIES; wrappers are looked through.

    Raises UserError for an unknown model, for experts, for adapters, and for weights that are no plain floating-point
    matrices (quantised ones). Nothing of the model is changed.
    """
    model = unwrapped(model)
    family = family_of(model) if family is None else family
    if "experts" in family.down:
        raise UserError(
            f"a {type(model).__name__} has experts in place of FFNs; slicing takes models with one FFN a layer"
        )
    layers = [_ffn(layer, block, family) for layer, block in enumerate(family.blocks(model))]
    if not any(ffn.down for ffn in layers):
        raise UserError(f"a {type(model).__name__} of {len(layers)} layers has no FFN that could be sliced")
    return FFNs(model, family, layers)


def _ffn(layer, block, family):
    own = getattr(block, "ffn", None)
    if isinstance(own, FeedForward):
        return _own_ffn(layer, own)
    if type(getattr(block, "mlp", None)).__name__ == "NoFeedForward":  # of our own exports, see exchange.remote_code
        return FFN(layer, f"layer {layer}", (), None)
    inner, down = family.projections_of(block)
    where = f"layer {layer}"
    columns = _weight(down, 1, where)
    width = columns.parameter.shape[columns.axis]
    rows: list[Weight] = []
    for module in inner:
        weight = _weight(module, 0, where)
        stacked, rest = divmod(weight.parameter.shape[weight.axis], width) if width else (1, 0)
        if rest or stacked not in (1, 2):
            raise UserError(
                f"{where}: a {type(module).__name__} makes {weight.parameter.shape[weight.axis]} features for "
                f"{width} neurons; needed: as many, or twice as many for gate and up in one"
            )
        rows.append(replace(weight, stacked=stacked))
        if getattr(module, "bias", None) is not None:
            rows.append(Weight(module, "bias", 0, 0, stacked))
    return FFN(layer, where, rows, columns)


def _own_ffn(layer, module):
    names = [name for name in ("gate", "up", "gate_bias", "up_bias") if getattr(module, name) is not None]
    rows = [Weight(module, name, 0, 0) for name in names]
    return FFN(layer, f"layer {layer}", rows, Weight(module, "down", 0, 1), "down_bias")


def _weight(module, side, where):
    """The Weight of a linear layer whose outputs (side 0) or inputs (side 1) are the neurons."""
    if isinstance(getattr(module, "base_layer", None), nn.Module):
        raise UserError(f"{where} has adapters; merge them first (merge_and_unload) and slice the result")
    weight: Any = getattr(module, "weight", None)
    if type(weight) not in (torch.Tensor, nn.Parameter) or not weight.is_floating_point() or weight.ndim != 2:
        kind = f"{type(weight).__name__} of {weight.dtype}" if isinstance(weight, torch.Tensor) else "no weight"
        raise UserError(
            f"{where}: a {type(module).__name__} holds {kind}, not a plain floating-point matrix; slice the model in "
            "floating point and quantise the result"
        )
    return Weight(module, "weight", 1 - side if type(module).__name__ == "Conv1D" else side, side)
