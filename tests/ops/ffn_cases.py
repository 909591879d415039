"""Inputs and references shared by the tests of the feed-forward op."""

import torch

from geowidth.ops.feed_forward.operation import ffn
from geowidth.ops.feed_forward.reference import ffn_plain, ffn_reference

NAMES = ("x", "gate", "up", "down", "gate_bias", "up_bias", "down_bias")


# The tests of values run on a GPU too where there is one.
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def make(tokens, d, width, dtype=torch.float32, *, gated=True, bias=False, seed=0, device="cpu"):
    """{name: leaf tensor or None} of a layer whose activations have unit scale."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, scale):
        return (torch.randn(*shape, generator=generator) * scale).to(device, dtype).requires_grad_()

    return {
        "x": draw(tokens, d, scale=1.0),
        "gate": draw(width, d, scale=d**-0.5) if gated else None,
        "up": draw(width, d, scale=d**-0.5),
        "down": draw(width, d, scale=max(1, width) ** -0.5),
        "gate_bias": draw(width, scale=0.5) if gated and bias else None,
        "up_bias": draw(width, scale=0.5) if bias else None,
        "down_bias": draw(d, scale=0.5) if bias else None,
    }


def call(inputs, activation, **options):
    """`ffn` of such a dict."""
    positional = [inputs[name] for name in NAMES[:4]]
    return ffn(*positional, activation, **{name: inputs[name] for name in NAMES[4:]}, **options)


def plain(inputs, activation):
    """The same by plain torch in the inputs' dtype."""
    return ffn_plain(*(inputs[n] for n in NAMES[:4]), activation, *(inputs[n] for n in NAMES[4:]))


def reference(inputs, activation):
    """The same in float64."""
    return ffn_reference(*(inputs[n] for n in NAMES[:4]), activation, **{name: inputs[name] for name in NAMES[4:]})


def widened(inputs):
    """The same numbers as float64 leaves."""
    return {n: None if t is None else t.detach().double().requires_grad_() for n, t in inputs.items()}


def outputs(function, inputs, *arguments, **options):
    """[y, gradient of each present input] for a fixed random output gradient; the reference's are float64."""
    gradient = torch.randn(inputs["x"].shape, generator=torch.Generator().manual_seed(9)).to(inputs["x"])
    if function is reference:
        inputs, gradient = widened(inputs), gradient.double()
    y = function(inputs, *arguments, **options)
    present = [t for t in inputs.values() if t is not None]
    return [y.detach(), *torch.autograd.grad(y, present, gradient)]


def errors(found, expected):
    """Root mean square error of each tensor over the root mean square of the expected one."""
    return [
        ((f.double() - e.double()).norm() / e.double().norm().clamp_min(1e-30)).item() if e.numel() else 0.0
        for f, e in zip(found, expected, strict=True)
    ]
