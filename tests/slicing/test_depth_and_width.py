"""Blocks against neurons at equal parameters: what is tried, that parameters are equal, and what is taken."""

import numpy as np
import pytest
import torch

from geowidth.cascade.blocks import residual_blocks
from geowidth.errors import UserError
from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.slicing.depth_and_width import depth_against_width
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.ffns import ffns_of
from geowidth.slicing.targets import Keep, Latency, Parameters
from tests.slicing.width_models import evidence, windows


def idle(layers=(1, 3), of=5):
    """An Evidence of `of` blocks, of which `layers` change nothing at all: attention and FFN add 0."""
    look = evidence(layers=of)
    model = look.ffns.model
    with torch.no_grad():
        for layer in layers:
            model.model.layers[layer].self_attn.o_proj.weight.zero_()
            model.model.layers[layer].mlp.down_proj.weight.zero_()
        text = windows(12)
        targets = model(text.tokens).logits.argmax(-1).where(text.targets >= 0, text.targets)
    look.text = type(text)(text.tokens, targets, text.settings)
    return look


def test_blocks_that_do_nothing_go_before_neurons_that_do():
    look = idle()
    state = {name: tensor.clone() for name, tensor in look.ffns.model.state_dict().items()}
    block = sum(p.numel() for p in residual_blocks(look.ffns.model).parameters(0))
    total = look.sizes.parameters - 2 * block
    found = depth_against_width(look, Parameters(total))
    assert found.best.removed in ((1, 3), (3, 1)) and found.best.parameters == total
    assert found.best.schedule.widths == (24,) * 3, "with both idle blocks gone no neuron has to"
    for trial in found.trials:
        assert total - 3 * 16 * 5 < trial.parameters <= total
        assert len(trial.schedule.widths) == 5 - len(trial.removed)
    facts = found.to_json()
    assert facts["best"] == 2 and facts["trials"][2]["more_than_best"] == {"mean": 0.0, "standard_error": 0.0}
    assert facts["trials"][0]["more_than_best"]["mean"] > 0
    assert all(torch.equal(state[name], t) for name, t in look.ffns.model.state_dict().items())
    assert [f.width for f in look.ffns] == [24] * 5


def test_a_trial_is_the_model_it_says():
    """The losses are those of a model built without the blocks, with the same neurons gone."""
    config = ModelConfig(20, 3, 16, 2, (24, 24, 24), 16)
    model = TaperedTransformer(config, seed=1).eval()
    look = Evidence(ffns_of(model), windows(12), "magnitude")
    found = depth_against_width(look, Keep(0.1), blocks_by="magnitude", patience=9)
    trial = found.trials[1]
    kept = [i for i in range(3) if i not in trial.removed]
    short = TaperedTransformer(ModelConfig(20, 2, 16, 2, (24, 24), 16), seed=None)
    own = {f"blocks.{n}.": f"blocks.{i}." for n, i in enumerate(kept)}
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("blocks.")}
    state |= {
        k.replace(old, new, 1): v
        for new, old in own.items()
        for k, v in model.state_dict().items()
        if k.startswith(old)
    }
    short.load_state_dict(state)
    again = depth_against_width(
        Evidence(ffns_of(short), windows(12), "magnitude"), Parameters(trial.parameters), most=0
    )
    assert again.trials[0].schedule.widths == trial.schedule.widths
    np.testing.assert_allclose(again.trials[0].losses, trial.losses, atol=1e-5)
    assert model.config.widths == (24, 24, 24)


def test_it_stops_when_it_only_gets_worse():
    found, every = (depth_against_width(idle((), 8), Keep(0.05), patience=patience) for patience in (1, 99))
    assert len(found.trials) == len(found.best.removed) + 2 < len(every.trials)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"by": "sensitivity"}, "measure no layer by itself"),
        ({"by": "nosuch"}, "allowed: uniform"),
        ({"blocks_by": "ledger"}, "allowed: similarity"),
        ({"most": 5}, "allowed: whole numbers from 0 to 4"),
        ({"patience": 0}, "patience is 0"),
    ],
)
def test_wrong_questions_are_one_line(given, words):
    with pytest.raises(UserError, match=words):
        depth_against_width(idle(), Keep(0.5), **given)


def test_too_little_text_and_times_are_refused():
    look = evidence()
    with pytest.raises(UserError, match="6 calibration windows came; 8 or more"):
        depth_against_width(look, Keep(0.5))
    look.text = windows(12)
    from geowidth.artifacts.cost import TableCost

    with pytest.raises(UserError, match="at equal parameters"):
        depth_against_width(look, Latency(1.0, TableCost([24], [1.0])))
