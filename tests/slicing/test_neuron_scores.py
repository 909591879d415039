"""Scores of neurons: against plain float64, and useless neurons go first."""

import numpy as np
import pytest
import torch
from slicing_models import CAUSAL, ENCODERS, OWN, made, output, text_of
from torch.nn import functional

from geowidth.errors import UserError
from geowidth.slicing import NEURON_RULES, FFNs, ffns_of, kept_neurons, neuron_scores, sliced
from geowidth.slicing.scores import NeuronRule

TEXT = text_of(windows=7)
SOME = ("ours", "ours, plain", "ours, a layer without FFN", "llama with biases", "phi3", "gpt2", "opt", "granite")


def hidden_of(model, tokens):
    """h of every layer, (windows, length, width), by hooks of torch or the formula."""
    found = {}
    with ffns_of(model).reading(lambda layer, h: found.__setitem__(layer, h.detach())):
        output(model, tokens)
    return found


def reference(model, rule):
    """Scores of every layer that has an FFN, from the definitions."""
    ffns, hidden = ffns_of(model), hidden_of(model, TEXT.tokens)
    scores = {}
    for layer, h in hidden.items():
        norms = ffns[layer].columns().norm(dim=0)
        flat = h.flatten(0, -2)
        h = flat.unflatten(0, TEXT.tokens.shape)
        scores[layer] = {
            "activation": lambda flat, _, norms: flat.square().mean(0).sqrt() * norms,
            "fluctuation": lambda flat, _, norms: (flat - flat.mean(0)).square().sum(0) / (len(flat) - 1) * norms**2,
            "minitron": lambda _, h, __: h.abs().mean(1).norm(dim=0),
        }[rule](flat, h, norms)
    return scores


@pytest.mark.parametrize("rule", ("activation", "fluctuation", "minitron"))
@pytest.mark.parametrize("name", (*SOME, *ENCODERS))
def test_statistics_are_those_of_the_definition(name, rule):
    model = made(name)
    for batch in (1, 3, 7):
        found = neuron_scores(ffns_of(model), TEXT, rule, batch=batch)
        assert [len(s) for s in found] == list(ffns_of(model).widths)
        for layer, right in reference(model, rule).items():
            np.testing.assert_allclose(found[layer], right, rtol=1e-10)


def test_a_large_mean_leaves_the_variance_exact():
    """In float32, neurons whose mean is 1e4 times their deviation: a difference of squares would have no digit left."""
    model = made("gpt2")
    with torch.no_grad():
        for ffn in ffns_of(model):
            ffn.rows[1].parameter.add_(300)
    right = reference(model, "fluctuation")
    found = neuron_scores(ffns_of(model.float()), TEXT, "fluctuation", batch=2)
    np.testing.assert_allclose(found[0], right[0], rtol=2e-3)


@pytest.mark.parametrize("name", SOME)
def test_taylor_is_the_change_of_the_loss_to_first_order(name):
    """By differences: every h_j of a layer times 1 - step, window by window. Some norms round to float32."""
    model, text = made(name), text_of(windows=2)
    ffns = ffns_of(model)

    def losses():
        logits = output(model, text.tokens).transpose(1, 2)
        return functional.cross_entropy(logits, text.targets, reduction="none", ignore_index=-100).sum(1) / 11

    found = neuron_scores(ffns, text, "taylor", batch=1)
    for layer, neuron in ((0, 0), (0, 7), (1, 5)):
        if neuron >= ffns.widths[layer]:
            continue
        change = []
        for step in (1e-2, -1e-2):
            factor = torch.ones(ffns.widths[layer], dtype=torch.float64)
            factor[neuron] -= step
            with ffns[layer].reading(lambda h, factor=factor: h * factor):
                change.append(losses())
        right = ((change[0] - change[1]) / 2e-2).abs().mean()
        assert found[layer][neuron] == pytest.approx(float(right), rel=2e-3, abs=2e-5)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def make_useless(ffn, columns, rows):
    """Zero columns of down, and zero rows of gate (or up) with their biases."""
    down = ffn.columns().clone()
    down[:, columns.long()] = 0
    ffn.put_columns(down)
    first = ffn.rows[0]
    for weight in ffn.rows:
        if weight.module is first.module and (weight.name.startswith(first.name) or first.name == "weight"):
            parameter = weight.parameter.detach()
            (parameter.T if weight.axis else parameter)[rows] = 0  # of gate above up the first part: gate


@pytest.mark.parametrize("rule", [name for name in NEURON_RULES if name != "random"])
@pytest.mark.parametrize("name", [*OWN, *CAUSAL])
def test_useless_neurons_go_first_and_are_not_missed(name, rule):
    """Their scores are 0; another neuron with 0 is as useless. Minitron's rule does not look at the down-projection, so
    of zero columns it knows nothing."""
    model = made(name)
    ffns = ffns_of(model)
    useless = torch.tensor([2, 3, 11, 17])
    for ffn in ffns:
        if ffn.width:
            make_useless(ffn, torch.tensor([]) if rule == "minitron" else useless[::2], useless[1::2])
    useless = useless[1::2] if rule == "minitron" else useless
    whole = output(model, TEXT.tokens)
    scores = neuron_scores(ffns, TEXT, rule)
    for found in scores:
        assert not len(found) or (found[useless] == 0).all() and found.min() == 0 and np.median(found) > 0
    with sliced(ffns, kept_neurons(scores, [max(0, width - len(useless)) for width in ffns.widths])):
        torch.testing.assert_close(output(model, TEXT.tokens), whole, rtol=1e-10, atol=1e-10)


def test_magnitude_is_not_moved_by_rescaling():
    model = made("llama with biases")
    ffns = ffns_of(model)
    before = neuron_scores(ffns, None, "magnitude")
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(8)
        model.model.layers[0].mlp.up_proj.bias.mul_(8)
        model.model.layers[0].mlp.down_proj.weight.div_(8)
    for old, new in zip(before, neuron_scores(ffns, None, "magnitude"), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-12)
    gate, up, down = (getattr(model.model.layers[1].mlp, f"{name}_proj") for name in ("gate", "up", "down"))
    rows = [torch.cat([one.weight, one.bias[:, None]], 1).norm(dim=1) for one in (gate, up)]
    np.testing.assert_allclose(before[1], (rows[0] * rows[1] * down.weight.norm(dim=0)).detach(), rtol=1e-12)


def test_magnitude_is_that_of_the_parts_where_gate_and_up_are_one_matrix():
    model = made("phi3")
    gate, up = model.model.layers[0].mlp.gate_up_proj.weight.detach().chunk(2)
    right = gate.norm(dim=1) * up.norm(dim=1) * model.model.layers[0].mlp.down_proj.weight.detach().norm(dim=0)
    np.testing.assert_allclose(neuron_scores(ffns_of(model), None, "magnitude")[0], right, rtol=1e-12)


def test_random_scores_follow_their_seed():
    ffns = ffns_of(made("ours"))
    first, again, other = (neuron_scores(ffns, None, "random", seed=seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again)) and not any(map(np.array_equal, first, other))
    assert [sorted(scores) for scores in first] == [list(range(width)) for width in ffns.widths]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    (
        ("ours", {"rule": "wanda"}, "neuron rule is 'wanda'; allowed: activation"),
        ("ours", {"rule": "taylor", "text": None}, "neuron rule taylor needs calibration text, and none came"),
        ("bert", {"rule": "taylor"}, "needs next-token losses, and a BertModel gives none"),
        ("ours", {"rule": "activation", "batch": 0}, "batch is 0"),
    ),
)
def test_bad_input_is_one_line(name, options, words):
    with pytest.raises(UserError, match=words):
        neuron_scores(ffns_of(made(name)), **{"text": TEXT} | options)


def test_scores_that_are_no_numbers_are_refused():
    model = made("ours")
    with torch.no_grad():
        model.blocks[0].ffn.up[0] = torch.nan
    with pytest.raises(UserError, match="gives layer 0 scores that are not 24 finite numbers"):
        neuron_scores(ffns_of(model), TEXT)


def test_modes_are_as_before():
    model = made("gpt2").train()
    neuron_scores(ffns_of(model), TEXT)
    assert model.training and all(module.training for module in model.modules())


def test_a_rule_from_outside(monkeypatch):
    monkeypatch.setattr(NEURON_RULES, "_items", dict(NEURON_RULES._items))
    NEURON_RULES.register(
        NeuronRule("first", "the first stay", lambda e: [-np.arange(w, dtype=float) for w in e.ffns.widths])
    )
    ffns = ffns_of(made("ours"))
    assert isinstance(ffns, FFNs) and neuron_scores(ffns, TEXT, "first")[0][5] == -5
