"""Sliced models: what is cut, what that does to their outputs, and that all is back afterwards."""

import pytest
import torch
from slicing_models import NAMES, made, output, text_of

from geowidth.errors import UserError
from geowidth.slicing import ffns_of, kept_neurons, neuron_scores, slice_in_place, sliced
from geowidth.slicing.correction import Correction

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


@pytest.mark.parametrize("name", ("ours", "llama", "phi3", "gpt2", "opt"))
def test_all_neurons_are_the_model_itself(name):
    model = made(name, torch.float32)
    ffns, before, whole = ffns_of(model), state_of(model), output(model, TEXT.tokens)
    with sliced(ffns, [torch.arange(width) for width in ffns.widths], TEXT) as report:
        assert unchanged(model, before) and torch.equal(output(model, TEXT.tokens), whole)
    assert all(layer.ridge is None and layer.kept == layer.width for layer in report.layers)


@pytest.mark.parametrize("calibration", (None, TEXT))
@pytest.mark.parametrize("name", ("ours", "ours, plain", "llama with biases", "phi3", "opt", "bert"))
def test_one_neuron_and_none(name, calibration):
    model = made(name)
    ffns, whole = ffns_of(model), output(model, TEXT.tokens)
    kept = [torch.tensor([5]), torch.tensor([], dtype=torch.int64)]
    with sliced(ffns, kept, calibration, bias=calibration is not None):
        found = output(model, TEXT.tokens)
        assert found.isfinite().all() and not torch.equal(found, whole)
        assert ffns.widths == (1, 0)
    assert torch.equal(output(model, TEXT.tokens), whole)


@pytest.mark.parametrize(
    "name", ("ours", "ours, plain", "llama with biases", "phi3", "gpt2", "opt", "gpt_neox parallel")
)
def test_what_others_can_say_is_not_missed(name):
    """Neurons 20 on are copies of the first ones, so a correction without a ridge restores the outputs."""
    model = made(name)
    ffns = ffns_of(model)
    copied = torch.cat([torch.arange(20), torch.arange(4)])
    for ffn in ffns:
        columns = ffn.columns().clone()
        ffn.keep(copied[: ffn.width])  # not ascending, and as many as there are: nothing happens
        for weight in ffn.rows:
            stacked = torch.cat([copied[: ffn.width] + part * ffn.width for part in range(weight.stacked)])
            weight.put(weight.parameter.detach().index_select(weight.axis, stacked))
        assert torch.equal(ffn.columns(), columns)
    text = text_of(windows=16)
    whole = output(model, text.tokens)
    kept = [torch.arange(min(20, width - 1)) for width in ffns.widths]
    with sliced(ffns, kept):
        assert (output(model, text.tokens) - whole).abs().max() > 1e-2
    with sliced(ffns, kept, text, ridge=1e-12) as report:
        found = output(model, text.tokens)
    if ffns.widths == (24, 24):
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)
    assert report.layers[0].ridge == 1e-12


def test_a_layer_is_corrected_on_what_the_sliced_layers_below_give():
    """One pass does what slicing layer after layer, each on a model sliced below, does."""
    kept = [torch.arange(18), torch.arange(15)]
    model = made("llama")
    ffns = ffns_of(model)
    slice_in_place(ffns, kept, TEXT, ridge=0.1)
    other = made("llama")
    steps = ffns_of(other)
    slice_in_place(steps, [kept[0], torch.arange(24)], TEXT, ridge=0.1)
    slice_in_place(steps, [torch.arange(18), kept[1]], TEXT, ridge=0.1)
    for (name, one), two in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10, msg=name)
    assert ffns.widths == (18, 15)
    fresh = made("llama")
    columns = fresh.model.layers[1].mlp.down_proj.weight[:, :15]
    assert not torch.allclose(columns, model.model.layers[1].mlp.down_proj.weight)


def test_what_a_slice_writes_is_told():
    ffns = ffns_of(made("gpt2"))
    with sliced(ffns, [torch.arange(20), torch.arange(24)], text_of(windows=20)) as report:
        told = report.to_json()
    assert told["calibration"] == {"seed": 0}
    assert told["layers"][1] == {"layer": 1, "width": 24, "kept": 24, "ridge": None, "unexplained": None}
    assert told["layers"][0]["kept"] == 20 and 0 < told["layers"][0]["unexplained"] <= 1


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32))
def test_parameters_keep_their_dtype(dtype):
    model = made("llama", dtype)
    ffns = ffns_of(model)
    with sliced(ffns, [torch.arange(20), torch.arange(20)], TEXT, bias=True):
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert output(model, TEXT.tokens).isfinite().all()


def test_frozen_parameters_stay_frozen():
    model = made("llama").requires_grad_(False)
    slice_in_place(ffns_of(model), [torch.arange(20), torch.arange(20)], TEXT, bias=True)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_failure_leaves_the_model_as_it_was(monkeypatch):
    model = made("gpt2")
    ffns, before = ffns_of(model), state_of(model)
    calls = []

    def failing(*given):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return Correction()

    monkeypatch.setattr("geowidth.slicing.apply.corrected", failing)
    with pytest.raises(KeyboardInterrupt):
        slice_in_place(ffns, [torch.arange(20), torch.arange(20)], TEXT)
    assert unchanged(model, before) and ffns.widths == (24, 24)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("change", "words"),
    (
        ({"kept": [torch.arange(3)]}, "neurons to keep came for 1 layers, the model has 2"),
        (
            {"kept": [torch.tensor([2, 1]), torch.arange(3)]},
            "of layer 0 are no ascending int64 indices below its width 24",
        ),
        ({"kept": [torch.arange(3), torch.arange(25)]}, "of layer 1 are no ascending"),
        ({"kept": [[1, 2], [3]]}, "of layer 0 are no ascending"),
        ({"calibration": None, "bias": True}, "a bias for what is removed needs calibration text"),
        ({"kept": [torch.arange(3), torch.arange(0)]}, "layer 1 would keep no neuron, which its Conv1D cannot compute"),
        ({"ridge": -1.0}, "ridge is -1.0; allowed: finite numbers from 0 up"),
        ({"ridge": []}, "ridge is an empty list"),
        ({"ridge": "best"}, "ridge is 'best'"),
        (
            {"calibration": text_of(windows=2)},
            "2 calibration windows of 12 tokens leave 12 to fit 20 neurons with; give 3",
        ),
    ),
)
def test_bad_input_is_one_line_before_work(change, words, monkeypatch):
    monkeypatch.setattr("geowidth.slicing.apply.cut", None)
    given = {"kept": [torch.arange(20), torch.arange(20)], "calibration": TEXT} | change
    with pytest.raises(UserError, match=words) as caught:
        slice_in_place(ffns_of(made("gpt2")), **given)
    assert "\n" not in str(caught.value)


def test_weights_without_data_are_refused():
    model = made("llama").to("meta")
    with pytest.raises(UserError, match="layer 0: weights lie on the meta device"):
        slice_in_place(ffns_of(model), [torch.arange(20), torch.arange(20)])


def test_too_little_memory_is_said_before_work(monkeypatch):
    monkeypatch.setattr("geowidth.memory.available", lambda: 1000)
    with pytest.raises(UserError, match="a correction over 96 tokens takes .* give fewer calibration windows"):
        slice_in_place(ffns_of(made("llama")), [torch.arange(20), torch.arange(20)], TEXT)
