"""The ordered residual blocks of a model: of ours, of the Hugging Face families that can be measured, of ResNets.

A block can be left out (the stream passes it unchanged) and put back, its parameters listed, and the states that enter
and leave it read. Nothing of the model is rebuilt: state dicts, hooks and modes stay as they are.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from geowidth.errors import UserError, whole
from geowidth.measure.families import family_of, model_type
from geowidth.measure.models import unwrapped
from geowidth.measure.states import states_in

Reader = Callable[[int, torch.Tensor, torch.Tensor], object]


class ResidualBlocks:
    """The residual blocks of `model`, first one first.

    model: what they are part of (wrappers that leave states alone are looked through). modules: the blocks, each
    different, each a part of the model. names: their paths in the model, such as "model.layers.3".
    """

    def __init__(self, model: nn.Module, modules: Sequence[nn.Module]) -> None:
        self.model = unwrapped(model)
        self.modules = tuple(modules)
        paths = {id(module): path for path, module in self.model.named_modules()}
        if not self.modules or any(id(module) not in paths for module in self.modules):
            raise UserError(
                f"blocks must be parts of the {type(self.model).__name__}, one or more; give its own modules"
            )
        if len({id(module) for module in self.modules}) < len(self.modules):
            raise UserError(f"a block of the {type(self.model).__name__} stands twice in its depth; give each once")
        self.names = tuple(paths[id(module)] for module in self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    def parameters(self, block: int) -> list[nn.Parameter]:
        """The parameters of one block, in the order of its state dict."""
        return list(self.modules[self._index(block)].parameters())

    @contextlib.contextmanager
    def without(self, blocks: Iterable[int]) -> Iterator[None]:
        """Inside, the states pass these blocks as if they were not there; afterwards all is as before.

        A block that changes the shape of its states on the way past it (a ResNet's first of a stage) keeps that
        shortcut alone. UserError, at the first forward pass, for a block of another kind that changes it.
        """
        chosen = [self.modules[self._index(block)] for block in dict.fromkeys(blocks)]
        with other_forwards({module: _Identity(module) for module in chosen}):
            yield

    @contextlib.contextmanager
    def reading(self, read: Reader) -> Iterator[None]:
        """Inside, `read(block, input, output)` is called whenever a block has run, with the states as they are."""
        handles = [
            module.register_forward_hook(_hook(i, read), with_kwargs=True) for i, module in enumerate(self.modules)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _index(self, block):
        return whole("block", block, 0, len(self) - 1)


@contextlib.contextmanager
def other_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Inside, these modules run other functions in place of their forward; afterwards all is as before."""
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module, forward in before.items():
            del vars(module)["forward"]
            if forward is not None:
                vars(module)["forward"] = forward


def residual_blocks(model: nn.Module) -> ResidualBlocks:
    """The ResidualBlocks of a model: ours, a family of geowidth.measure.FAMILIES, or a ResNet of transformers.

    Raises UserError for others, whose blocks ResidualBlocks(model, modules) takes as they are named.
    """
    inner = unwrapped(model)
    find = CONVOLUTIONAL.get(str(model_type(getattr(inner, "config", None))))
    return ResidualBlocks(inner, find(inner) if find else family_of(inner).blocks(inner))


def _resnet_blocks(model):
    """The basic or bottleneck blocks of a ResNet, stage after stage; a classifier keeps it under `resnet`."""
    stages = getattr(model, "resnet", model).encoder.stages
    return [block for stage in stages for block in stage.layers]


# model_type: the blocks of a residual convolutional network
CONVOLUTIONAL: dict[str, Callable[[Any], list[nn.Module]]] = {"resnet": _resnet_blocks}


class _Identity:
    """The forward of a block that is left out: gives what it was given, in the form the block gives.

    What form that is, its first call tells, for which the block runs once: some versions of a library return a tensor,
    others a tuple that is led by it.
    """

    def __init__(self, block):
        self.block, self.usual = block, block.forward
        self.tuple_length = None

    def __call__(self, *arguments, **keywords):
        states = _given(arguments, keywords)
        shortcut = getattr(self.block, "shortcut", None)
        if isinstance(shortcut, nn.Module) and not isinstance(shortcut, nn.Identity):
            return self.block.activation(shortcut(states))
        if self.tuple_length is None:
            with torch.no_grad():
                self.tuple_length = self._form(states, self.usual(*arguments, **keywords))
        return states if not self.tuple_length else (states, *[None] * (self.tuple_length - 1))

    def _form(self, states, output):
        """0 for a block that gives a tensor, else the length of its tuple."""
        found = states_in(self.block, output)
        if found.shape != states.shape:
            raise UserError(
                f"a {type(self.block).__name__} turns states of shape {tuple(states.shape)} into {tuple(found.shape)}; "
                "such a block cannot be left out"
            )
        return 0 if isinstance(output, torch.Tensor) else len(output)


def _given(arguments, keywords):
    """The states a block is called with: its first argument, named or not."""
    return arguments[0] if arguments else keywords.get("hidden_states", next(iter(keywords.values()), None))


def _hook(block, read):
    def keep(module, arguments, keywords, output):
        read(block, _given(arguments, keywords), states_in(module, output))

    return keep
