"""Small models for rules for widths: one whose FFN of a layer does nothing, and windows of text for them."""

import torch

from geowidth.cascade.held_out import IGNORED, HeldOut
from geowidth.slicing.evidence import Evidence
from geowidth.slicing.ffns import ffns_of
from tests.cascade.cascade_models import MODELS, library


def windows(count=6, length=12, vocabulary=20, seed=0):
    """A HeldOut of random ids."""
    tokens = torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(seed))
    targets = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=IGNORED)
    return HeldOut(tokens, targets, {"windows": count, "context": length, "seed": seed})


def loud(model, useless=None):
    """The model with FFNs that matter to its loss, but for that of the layer `useless`, whose down-projection is 0."""
    with torch.no_grad():
        for ffn in ffns_of(model):
            ffn.columns().mul_(0.0 if ffn.layer == useless else 40.0 * (1 + ffn.layer))
    return model


def evidence(useless=None, layers=4, **changes):
    """An Evidence of a small Llama model, whose targets are what the model finds likeliest: to change it costs loss."""
    model, text = loud(library("llama", num_hidden_layers=layers), useless), windows()
    with torch.no_grad():
        likeliest = model(text.tokens).logits.argmax(-1)
    targets = likeliest.where(text.targets != IGNORED, text.targets)
    return Evidence(ffns_of(model), HeldOut(text.tokens, targets, text.settings), **{"batch": 4, **changes})


__all__ = ["MODELS", "evidence", "library", "loud", "windows"]
