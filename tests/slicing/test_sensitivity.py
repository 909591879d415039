"""Losses of models sliced in one layer alone: against whole passes, kept on the way, gone on from; widths by them."""

import json

import numpy as np
import pytest
import torch

from geowidth.cascade.blocks import ResidualBlocks
from geowidth.cascade.held_out import window_losses
from geowidth.errors import UserError
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.slicing import layer_losses as module
from geowidth.slicing.apply import sliced
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.ffns import ffns_of
from geowidth.slicing.layer_losses import measured_losses
from geowidth.slicing.scores import neuron_scores
from geowidth.slicing.selection import kept_neurons
from geowidth.slicing.suffix import Suffixes
from geowidth.slicing.targets import Keep
from geowidth.slicing.widths import slice_widths
from tests.slicing.width_models import MODELS, evidence, library, loud, windows

KINDS = ("llama", "gemma3", "gpt2")


def plain(ffns, text, scores, share):
    """The same differences by slicing the model and running all of it."""
    whole = window_losses(ffns.model, text)
    found = []
    for layer, width in enumerate(ffns.widths):
        counts = [round(share * width) if i == layer else w for i, w in enumerate(ffns.widths)]
        with sliced(ffns, kept_neurons(scores, counts)):
            found.append(window_losses(ffns.model, text) - whole)
    return np.stack(found)


@pytest.mark.parametrize("kind", KINDS)
def test_one_layer_alone_as_a_sliced_model_has_it(kind):
    model = loud(MODELS[kind][0]())
    ffns, text = ffns_of(model), windows()
    scores = neuron_scores(ffns, text)
    found = measured_losses(ffns, text, scores, [0.5, 0.25], batch=4)
    for share in (0.25, 0.5):
        np.testing.assert_allclose(found.differences(share), plain(ffns, text, scores, share), atol=2e-5)
    assert np.abs(found.differences(0.25)).max() > 1e-3, "nothing was told apart"
    np.testing.assert_allclose(found.whole, window_losses(model, text), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_passes_begin_at_the_layer(kind):
    model = MODELS[kind][0]()
    family = ffns_of(model).family
    suffixes = Suffixes(ResidualBlocks(model, family.blocks(model)), windows(), 4)
    assert suffixes.reuses
    suffixes.advance()
    suffixes.advance()
    ran = []
    for layer, block in enumerate(suffixes.blocks.modules):  # a block that is skipped is called all the same
        next(block.children()).register_forward_hook(lambda *_, layer=layer: ran.append(layer))
    np.testing.assert_allclose(suffixes.losses(), suffixes.whole, atol=1e-5)
    assert sorted(set(ran)) == list(range(2, len(suffixes.blocks)))


def test_blocks_that_run_twice_are_run_whole():
    config = ModelConfig(20, 3, 16, 2, (24, 24, 24), 16, repeat_last=1, repeat_times=2)
    model = loud(TaperedTransformer(config, seed=1).eval())
    ffns, text = ffns_of(model), windows()
    scores = neuron_scores(ffns, text)
    assert not Suffixes(ResidualBlocks(model, list(model.blocks)), text, 4).reuses
    found = measured_losses(ffns, text, scores, [0.5], batch=4).differences(0.5)
    np.testing.assert_allclose(found, plain(ffns, text, scores, 0.5), atol=2e-5)


def test_all_is_as_before():
    model = loud(library("llama")).train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ffns = ffns_of(model)
    measured_losses(ffns, windows(), neuron_scores(ffns, windows()), [0.5])
    assert model.training and all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert all("forward" not in vars(m) and not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


class Stopped(Exception):
    pass


def test_a_stop_costs_one_layer(tmp_path, monkeypatch):
    model = loud(library("llama", num_hidden_layers=4))
    ffns, text, path = ffns_of(model), windows(), tmp_path / "losses.json"
    scores = neuron_scores(ffns, text)
    whole = measured_losses(ffns, text, scores, [0.5, 0.25])
    measured = []
    usual = module._losses_with

    def until(count):
        def call(ffn, *rest):
            if len(measured) == count:
                raise Stopped
            measured.append(ffn.layer)
            return usual(ffn, *rest)

        return call

    monkeypatch.setattr(module, "_losses_with", until(5))
    with pytest.raises(Stopped):
        measured_losses(ffns, text, scores, [0.5, 0.25], path=path)
    assert measured == [0, 0, 1, 1, 2]
    monkeypatch.setattr(module, "_losses_with", until(100))
    measured.clear()
    found = measured_losses(ffns, text, scores, [0.5, 0.25], path=path)
    assert measured == [2, 2, 3, 3]
    assert found.layers == whole.layers and found.whole == whole.whole
    kept = path.read_bytes()
    measured.clear()
    assert measured_losses(ffns, text, scores, [0.25], path=path).layers == whole.layers
    assert not measured and path.read_bytes() == kept
    measured_losses(ffns, text, scores, [0.5, 0.75], path=path)
    assert measured == [0, 1, 2, 3], "only the new share"


def test_what_is_kept_is_of_one_model_text_and_rule(tmp_path):
    ffns, text, path = ffns_of(loud(library("llama"))), windows(), tmp_path / "losses.json"
    scores = neuron_scores(ffns, text)
    measured_losses(ffns, text, scores, [0.5], path=path, settings={"neurons": "activation"})
    with pytest.raises(UserError, match="another text"):
        measured_losses(ffns, windows(seed=1), scores, [0.5], path=path, settings={"neurons": "activation"})
    with pytest.raises(UserError, match="another neurons: 'activation', not 'taylor'"):
        measured_losses(ffns, text, scores, [0.5], path=path, settings={"neurons": "taylor"})
    with torch.no_grad():
        ffns[0].columns().mul_(2)
    with pytest.raises(UserError, match="another model"):
        measured_losses(ffns, text, scores, [0.5], path=path, settings={"neurons": "activation"})
    value = json.loads(path.read_text())
    value["layers"][1]["0.5"].pop()
    path.write_text(json.dumps(value))
    with torch.no_grad():
        ffns[0].columns().div_(2)
    with pytest.raises(UserError, match="is damaged"):
        measured_losses(ffns, text, scores, [0.5], path=path, settings={"neurons": "activation"})


@pytest.mark.parametrize("rule", ["sensitivity", "curves", "combined:windows=3"])
def test_a_layer_whose_ffn_does_nothing_gets_the_least(rule):
    found = slice_widths(rule, evidence(useless=2), Keep(0.6))
    widths = np.array(found.widths)
    assert widths.argmin() == 2 and widths[2] < np.sort(widths)[1]
    assert widths.sum() == found.budget["value"] == 57 and widths.max() <= 24


def test_widths_go_as_the_square_root():
    look = evidence()
    found = slice_widths("sensitivity", look, Keep(0.5), floor=1)
    measured = np.maximum(look.losses([0.5]).differences(0.5).mean(1), 0)
    assert found.details["sensitivity"] == pytest.approx(look.losses([0.5]).differences(0.5).mean(1))
    real = np.array(found.details["real_widths"])
    free = (real > 1.01) & (real < 23.99)
    assert free.sum() > 1
    ratios = real[free] / np.sqrt(measured[free])
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)


def test_rules_share_what_was_measured(monkeypatch):
    look = evidence()
    slice_widths("curves", look, Keep(0.5))
    monkeypatch.setattr(module, "_measure", None)
    slice_widths("sensitivity", look, Keep(0.7))
    slice_widths("reversed-sensitivity:share=0.25", look, Keep(0.3))


def test_the_file_lies_in_the_folder(tmp_path):
    look = evidence(kept_in=tmp_path)
    slice_widths("sensitivity", look, Keep(0.5))
    slice_widths("combined:windows=3", look, Keep(0.5))
    assert {p.name for p in tmp_path.iterdir()} == {"layer_losses.json", "layer_losses-3.json"}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("sensitivity:share=1", "above 0 and below 1"),
        ("sensitivity:share=half", "above 0 and below 1"),
        ("sensitivity:exponent=-1", "exponent"),
        ("sensitivity:smoothing=yes", "True or False"),
        ("curves:shares=[]", "a list of different shares"),
        ("curves:shares=[0.5,0.5]", "a list of different shares"),
        ("curves:shares=[1.5]", "above 0 and below 1"),
        ("combined:windows=1", "windows is 1"),
        ("combined:windows=99", "there are 6 calibration windows"),
        ("combined:signals=[]", "a list of different ones"),
        ('combined:signals=["topology/flat"]', "geometry"),
        ('combined:signals=["size/spherical"]', "statistic of a signal is 'size'"),
        ("combined:tolerance=2", "tolerance is 2"),
        ("combined:most_draws=1", "most draws is 1"),
        ("geometry:tokens=3", "tokens of a draw is 3"),
        ("threshold:normalised=max", "allowed: norm, mean, standard, none"),
        ("geometry:exponent=fitted", "allowed: dimension"),
        ("geometry:tolerance=0", "tolerance"),
        ("geometry:mixture={}", "mixture"),
        ("geometry:geometry=flat", "geometry is 'flat'"),
        ("geometry:smoothness=2", "leave them out"),
    ],
)
def test_wrong_options_are_one_line_and_measure_nothing(rule, words, monkeypatch):
    monkeypatch.setattr(module, "_measure", None)
    monkeypatch.setattr("geowidth.slicing.draws.capture", None)
    with pytest.raises(UserError, match=words) as caught:
        slice_widths(rule, evidence(), Keep(0.5))
    assert "\n" not in str(caught.value)


def test_what_cannot_be_met_is_refused_before_work(monkeypatch):
    monkeypatch.setattr(module, "_measure", None)
    for given in ({"floor": 30.0, "multiple": 16}, {"multiple": 16}):
        with pytest.raises(UserError):
            slice_widths("sensitivity", evidence(), Keep(0.5), **given)


@pytest.mark.parametrize("rule", ["sensitivity", "curves", "combined"])
def test_an_encoder_has_no_loss_to_take(rule):
    encoder = Evidence(ffns_of(MODELS["bert"][0]()), windows())
    with pytest.raises(UserError, match="a BertModel gives none; take geometry, threshold or a schedule"):
        slice_widths(rule, encoder, Keep(0.5))
    assert sum(slice_widths("threshold", encoder, Keep(0.5)).widths) == 36


def test_text_and_model_are_asked_for_by_name():
    look = evidence()
    look.text = None
    with pytest.raises(UserError, match="looks at calibration text, and none came"):
        slice_widths("sensitivity", look, Keep(0.5))
