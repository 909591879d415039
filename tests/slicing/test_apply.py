"""Sliced models: what is cut, what that does to their outputs, and that all is back afterwards."""

import pytest
import torch
from slicing_models import NAMES, made, output, text_of

from geowidth.slicing import ffns_of, kept_neurons, neuron_scores, sliced

TEXT = text_of()


def state_of(model):
    return {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}


def unchanged(model, state):
    found = dict(model.named_parameters())
    assert list(found) == list(state)
    return all(id(found[name]) == was and torch.equal(found[name], bits) for name, (was, bits) in state.items())


def mask_out(ffns, kept):
    """Hooks that put 0 in the place of every neuron that is not kept."""

    def read(layer, h):
        mask = torch.zeros(h.shape[-1], dtype=h.dtype)
        mask[kept[layer]] = 1
        return h * mask

    return ffns.reading(read)


@pytest.mark.parametrize("name", NAMES)
def test_a_slice_is_the_model_with_the_other_neurons_at_zero(name):
    model = made(name)
    ffns, before, whole = ffns_of(model), state_of(model), output(model, TEXT.tokens)
    widths = ffns.widths
    kept = [torch.arange(width)[1::2] for width in widths]
    with mask_out(ffns, kept):
        masked = output(model, TEXT.tokens)
    with sliced(ffns, kept) as report:
        assert ffns.widths == ffns.family.widths(model) == tuple(len(k) for k in kept)
        torch.testing.assert_close(output(model, TEXT.tokens), masked, rtol=1e-9, atol=1e-9)
    assert (masked - whole).abs().max() > 1e-3
    assert [(layer.width, layer.kept) for layer in report.layers] == list(zip(widths, map(len, kept), strict=True))
    assert unchanged(model, before) and ffns.widths == widths == ffns.family.widths(model)
    assert torch.equal(output(model, TEXT.tokens), whole)


@pytest.mark.parametrize("name", NAMES)
def test_a_correction_brings_outputs_nearer(name):
    model = made(name)
    ffns, before, whole = ffns_of(model), state_of(model), output(model, TEXT.tokens)
    kept = kept_neurons(neuron_scores(ffns, TEXT), [round(0.75 * width) for width in ffns.widths])
    distance = {}
    for label, options in {
        "cut": {},
        "corrected": {"calibration": TEXT, "ridge": 1e-6},
        "with bias": {"calibration": TEXT, "ridge": 1e-6, "bias": True},
        "bias": {"calibration": TEXT, "ridge": None, "bias": True},
    }.items():
        with sliced(ffns, kept, **options):
            distance[label] = float((output(model, TEXT.tokens) - whole).norm())
        assert unchanged(model, before)
    assert max(distance["corrected"], distance["with bias"]) < distance["cut"] != distance["bias"]
