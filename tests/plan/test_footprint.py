"""The counted memory of a training against what torch really keeps."""

from dataclasses import replace

import pytest
import torch

from geowidth.models import ModelConfig, TaperedTransformer
from geowidth.models.presets import preset_named
from geowidth.plan.footprint import footprint
from geowidth.train.losses import summed_loss
from geowidth.train.optimise import make_optimizers
from geowidth.train.supervision import Supervision, is_supervised

CONFIG = ModelConfig(vocabulary=96, layers=2, dimension=32, heads=2, widths=(80, 48), context=16)
SETTINGS = replace(preset_named("pico").training, batch=8, microbatch=4)


def kept_bytes(config, settings):
    """Bytes of all storages that autograd keeps after a forward pass, those of parameters and tables left out."""
    model = TaperedTransformer(config, 0)
    model.compute_in(torch.bfloat16 if settings.dtype == "bfloat16" else None)
    model.recompute_in_backward(settings.recompute)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept, sizes = [], {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and storage.nbytes() > 8:
            kept.append(tensor)  # so that no address is used twice
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.randint(config.vocabulary, (settings.microbatch, config.context))
    documents = torch.zeros_like(tokens) if settings.document_mask else None
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        if is_supervised(settings):
            step = Supervision(config, settings, 0).at(settings.steps - 1, range(settings.batch))
            loss = step.loss(model, tokens, tokens, torch.device("cpu"), None, 0)
        elif documents is None:
            loss = summed_loss(model, tokens, tokens, torch.device("cpu"))
        else:
            loss = model(tokens, documents).sum()
    assert loss.requires_grad
    return sum(sizes.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("recompute", ["none", "ffn"])
@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, activation="gelu", tied=False),
        replace(CONFIG, heads=4, key_heads=2, head_size=8, layer_heads=(6, 2)),
    ],
)
def test_activations_are_what_autograd_keeps(config, recompute, dtype):
    settings = replace(SETTINGS, dtype=dtype, recompute=recompute)
    logits = 4 * settings.microbatch * config.context * config.vocabulary  # of the loss: its log-softmax
    assert kept_bytes(config, settings) - logits == footprint(config, settings).activations


@pytest.mark.parametrize("weights", ["layerskip", "equal"])
@pytest.mark.parametrize("config", [replace(CONFIG, tied=False), replace(CONFIG, repeat_last=1, repeat_times=3)])
def test_every_exit_keeps_its_logits_and_a_repeated_block_as_often_its_own(config, weights):
    settings = replace(SETTINGS, exit_loss=0.2, exit_weights=weights, exit_curriculum="gradual")
    places = len(config.order)
    exits = places if weights == "equal" else places - 1  # the first weighs nothing
    logits = 4 * settings.microbatch * config.context * config.vocabulary
    found = footprint(config, settings)
    assert found.logits == exits * footprint(config, SETTINGS).logits
    assert kept_bytes(config, settings) - exits * logits == pytest.approx(found.activations, rel=1e-3)
    again = replace(settings, recompute="block")
    assert footprint(config, again) == footprint(config, replace(SETTINGS, recompute="block"))


def test_a_mask_of_documents_is_kept():
    """It is kept by every layer, as numbers. The model's own bool mask is not: it only makes them."""
    settings = replace(SETTINGS, document_mask=True)
    without = replace(SETTINGS, document_mask=False)
    found = footprint(CONFIG, settings).activations - footprint(CONFIG, without).activations
    tokens = 4 * 16
    assert found == tokens * 16 * (1 + 4 * CONFIG.layers)
    logits = 4 * tokens * CONFIG.vocabulary  # kept for the loss of the other, which sums no logarithms
    wanted = kept_bytes(CONFIG, settings) - (kept_bytes(CONFIG, without) - logits - 8 * tokens)
    assert wanted == tokens * 16 * 4 * CONFIG.layers + 8 * tokens


def test_blocks_computed_again_keep_their_inputs_alone():
    settings = replace(SETTINGS, recompute="block")
    tokens = 4 * 16
    deeper = replace(CONFIG, layers=3, widths=(80, 48, 48))
    found = footprint(deeper, settings).activations - footprint(CONFIG, settings).activations
    assert found == tokens * 4 * 32
    assert footprint(CONFIG, settings).activations < footprint(CONFIG, SETTINGS).activations


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_moments_are_what_the_optimiser_keeps(optimizer):
    settings = replace(SETTINGS, optimizer=optimizer)
    model = TaperedTransformer(CONFIG, 0)
    optimizers = make_optimizers(model, settings)
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    optimizers.step()
    kept = [
        value
        for part in optimizers.parts
        for state in part.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.ndim
    ]
    assert sum(tensor.nbytes for tensor in kept) == footprint(CONFIG, settings).moments
    whole = footprint(CONFIG, settings)
    assert whole.weights == whole.gradients == 4 * CONFIG.parameters
    assert whole.total == sum((whole.weights, whole.gradients, whole.moments, whole.activations, whole.logits))
