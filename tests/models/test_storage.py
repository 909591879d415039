"""Models on disk: what was saved comes back bit by bit, and damaged files are refused in one line."""

import pytest
import torch

from geowidth import records
from geowidth.errors import UserError
from geowidth.models import ModelConfig, TaperedTransformer, load_model, save_model
from geowidth.tensors import write_tensors

CONFIG = ModelConfig(vocabulary=11, layers=2, dimension=8, heads=2, widths=(5, 3), context=6)


@pytest.fixture
def folder(tmp_path):
    save_model(TaperedTransformer(CONFIG, seed=2), tmp_path / "a model é")
    return tmp_path / "a model é"


def test_round_trip(folder):
    model, again = TaperedTransformer(CONFIG, seed=2), load_model(folder)
    assert again.config == CONFIG and not again.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(tokens), again(tokens))


def test_dtype_is_kept(tmp_path):
    save_model(TaperedTransformer(CONFIG).bfloat16(), tmp_path)
    assert {p.dtype for p in load_model(tmp_path).parameters()} == {torch.bfloat16}


def damage(folder, change):
    tensors = dict(load_model(folder).state_dict())
    change(tensors)
    write_tensors(folder / "model.safetensors", tensors)


def with_nan(tensors):
    tensors["blocks.1.ffn.up"][1, 2] = float("nan")


def with_infinity(tensors):
    tensors["embedding"][0, 0] = float("-inf")


def transposed(tensors):
    tensors["blocks.0.ffn.down"] = tensors["blocks.0.ffn.down"].T.contiguous()


def integers(tensors):
    tensors["norm.weight"] = tensors["norm.weight"].int()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_nan, "tensor blocks.1.ffn.up holds NaN"),
        (with_infinity, "tensor embedding holds NaN or infinity"),
        (transposed, r"tensor blocks.0.ffn.down has shape \(8, 5\).*\(5, 8\)"),
        (integers, "tensor norm.weight is torch.int32"),
        (lambda t: t.pop("blocks.0.attention.qkv"), "lacks tensor blocks.0.attention.qkv"),
        (lambda t: t.update(spare=torch.ones(1)), "a tensor spare"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, change, words):
    damage(folder, change)
    with pytest.raises(UserError, match=words) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("widths", "words"),
    [
        ([5, 4], r"tensor blocks.1.ffn.gate has shape \(3, 8\).*\(4, 8\)"),
        ([5], "1 widths came for 2 layers"),
        ([5, "3"], "width of layer 1"),
        ([5, 10**15], r"\(1000000000000000, 8\)"),
    ],
)
def test_lying_widths_are_refused(folder, widths, words):
    record = records.read_json(folder / "model.json")
    record["config"]["widths"] = widths
    records.write_json(folder / "model.json", record)
    with pytest.raises(UserError, match=words):
        load_model(folder)


def test_missing_and_damaged_files(folder):
    with pytest.raises(UserError, match="does not exist"):
        load_model(folder / "nowhere")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        load_model(folder)
    path.unlink()
    with pytest.raises(UserError, match="model.safetensors does not exist"):
        load_model(folder)
    records.write_json(folder / "model.json", {"kind": "geowidth.work", "schema": 1})
    with pytest.raises(UserError, match=r"geowidth\.model"):
        load_model(folder)
