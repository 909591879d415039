"""Residual blocks of our models, of Hugging Face families and of ResNets: found, left out, looked into."""

import pytest
import torch
from cascade_models import MODELS, TOKENS, first, library, ours, resnet

from geowidth.cascade import ResidualBlocks, residual_blocks
from geowidth.errors import UserError


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_found_left_out_and_put_back(name):
    make, given, names = MODELS[name]
    model = make()
    blocks = residual_blocks(model)
    assert blocks.names == names and len(blocks) == len(names)
    whole = first(model(given))
    with blocks.without([1]):
        seen = {}
        with blocks.reading(lambda block, before, after: seen.update({block: (before, after)})):
            assert not torch.equal(first(model(given)), whole)
        assert sorted(seen) == list(range(len(names)))
        assert torch.equal(*seen[1]) and not torch.equal(*seen[2])
    assert torch.equal(first(model(given)), whole)
    assert not any("forward" in vars(module) for module in blocks.modules)


@torch.no_grad()
def test_left_out_is_removed():
    """Without a block the logits are those of the model that never had it, key-value states and all."""
    model = library("llama")
    with residual_blocks(model).without([0, 2]):
        passed = model(TOKENS).logits
    del model.model.layers[2], model.model.layers[0]
    model.config.num_hidden_layers = 1
    assert torch.equal(model.model(TOKENS, use_cache=False)[0] @ model.lm_head.weight.T, passed)


@torch.no_grad()
def test_all_blocks_left_out_leave_the_embedding():
    model = ours()
    with residual_blocks(model).without(range(3)):
        expected = model.norm(model.embedding[TOKENS]) @ model.embedding.T
        assert torch.allclose(model(TOKENS), expected, atol=1e-6)


@pytest.mark.parametrize("layer_type", ["bottleneck", "basic"])
@torch.no_grad()
def test_resnet_keeps_the_shortcut_that_changes_shapes(layer_type):
    model, images = resnet(layer_type), MODELS["resnet"][1]
    blocks = residual_blocks(model)
    states = {}
    with blocks.without([2, 3]), blocks.reading(lambda i, before, after: states.update({i: (before, after)})):
        model(images)
    before, after = states[2]
    assert torch.equal(after, torch.relu(blocks.modules[2].shortcut(before)))
    assert torch.equal(*states[3])


def test_parameters_of_a_block():
    model = ours()
    blocks = residual_blocks(model)
    assert sum(p.numel() for i in range(3) for p in blocks.parameters(i)) == sum(
        p.numel() for name, p in model.named_parameters() if name.startswith("blocks.")
    )
    with pytest.raises(UserError, match="block is 3; allowed: whole numbers from 0 to 2"):
        blocks.parameters(3)


@torch.no_grad()
def test_blocks_by_hand_and_tuples():
    class Pair(torch.nn.Module):
        def forward(self, states, other=None):
            return states + 1, other

    model = torch.nn.ModuleList([Pair(), Pair()])
    blocks = ResidualBlocks(model, list(model))
    with blocks.without([0]):
        assert model[0](torch.zeros(2), other=3)[0].tolist() == [0, 0]
        assert len(model[0](states=torch.zeros(2))) == 2
    assert model[0](torch.zeros(2), other=3)[1] == 3


def test_refusals():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    with pytest.raises(UserError, match="cannot capture from a Sequential"):
        residual_blocks(model)
    with pytest.raises(UserError, match="parts of the Sequential"):
        ResidualBlocks(model, [torch.nn.Linear(2, 2)])
    with pytest.raises(UserError, match="stands twice"):
        ResidualBlocks(model, [model[0], model[0]])
    blocks = ResidualBlocks(model, [model[0]])
    with blocks.without([0]), pytest.raises(UserError, match="cannot be left out"):
        model(torch.zeros(1, 2))
