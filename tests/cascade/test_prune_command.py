"""`geowidth prune` as a user meets it: our checkpoints, Hugging Face folders, refusals."""

import json
import warnings

import numpy as np
import pytest
import torch
import transformers
from cascade_models import SMALL
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from geowidth import cli, records
from geowidth.artifacts.ledger import Ledger
from geowidth.cascade import residual_blocks
from geowidth.measure.opening import open_model
from geowidth.models import ModelConfig, TaperedTransformer, load_model, save_model

CONFIG = ModelConfig(256, 4, 16, 2, (24, 8, 0, 30), 16, layer_heads=(4, 2, 2, 2))
TOKENS = torch.arange(16).view(1, 16)


@pytest.fixture
def folder(tmp_path):
    save_model(TaperedTransformer(CONFIG, seed=1), tmp_path / "model")
    Ledger(tuple(f"blocks.{i}" for i in range(4)), 5, 0, [4, 1, 3, 2], [2, 1, 1, 1]).write(
        tmp_path / "model" / "ledger.json"
    )
    return tmp_path / "model"


@pytest.fixture
def pruned(text, capsys):
    def run(model, *more):
        code = cli.main(["prune", str(model), "--corpus", str(text), "--windows", "3", *map(str, more)])
        return code, capsys.readouterr()

    return run


@pytest.mark.parametrize("identity", [False, True])
def test_by_ledger_of_a_checkpoint_of_ours(folder, pruned, tmp_path, identity):
    code, said = pruned(folder, "--by", "ledger", "--blocks", 2, "--out", tmp_path / "out", *["--identity"] * identity)
    assert code == 0 and "blocks 1 3 of 4" in said.out and "by ledger" in said.out, said.err
    whole, short = load_model(folder), load_model(tmp_path / "out")
    if not identity:
        assert short.config == ModelConfig(256, 2, 16, 2, (24, 0), 16, layer_heads=(4, 2))
    else:
        assert short.config == whole.config and not any(p.any() for p in short.blocks[3].parameters())
    with torch.no_grad(), residual_blocks(whole).without([1, 3]):
        assert torch.allclose(short(TOKENS), whole(TOKENS), atol=1e-6)
    record = records.read_json(tmp_path / "out" / "prune.json", "geowidth.prune", 1)
    assert record["removed"] == [1, 3] and record["kept"] == [0, 2] and record["scores"] == [0.4, 0.1, 0.3, 0.2]
    difference = record["loss_after"]["mean"] - record["loss_before"]["mean"]
    assert record["difference"]["mean"] == pytest.approx(difference)
    assert f"{record['loss_after']['mean']:.4f} after" in said.out


def test_a_pruned_model_is_pruned_again_and_measured(folder, pruned, tmp_path):
    assert pruned(folder, "--by", "magnitude", "--blocks", 1, "--out", tmp_path / "a")[0] == 0
    assert pruned(tmp_path / "a", "--by", "random", "--seed", 4, "--blocks", 1, "--out", tmp_path / "b")[0] == 0
    assert open_model(tmp_path / "b").model.config.layers == 2


def word_tokenizer(folder):
    words = dict(
        zip(("?", "the", "width", "of", "a", "layer", "is", "what", "its", "work", "for"), range(11), strict=True)
    )
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def library_folder(path, kind, dtype=torch.float32, **changes):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SMALL | {"num_hidden_layers": 4} | changes)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    model.save_pretrained(path)
    word_tokenizer(path)
    return path


KINDS = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2, "num_key_value_heads": 1},
    "gemma3_text": {"head_dim": 8, "num_key_value_heads": 1, "sliding_window": 3, "pad_token_id": 0},
    "smollm3": {"no_rope_layer_interval": 2, "num_key_value_heads": 1, "pad_token_id": 0},
    "gpt2": {"n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 16},
}


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_folders(kind, pruned, tmp_path):
    """What the library makes of the result, and of nothing else, is the whole model without those blocks."""
    source = library_folder(tmp_path / "whole", kind, torch.bfloat16, **KINDS[kind])
    if kind == "gemma3_text":  # as files of older versions are: the kinds of attention follow from the layers' numbers
        config = json.loads((source / "config.json").read_text())
        del config["layer_types"]
        (source / "config.json").write_text(json.dumps(config))
    code, said = pruned(
        source, "--by", "random", "--seed", 1, "--blocks", 2, "--context", 12, "--out", tmp_path / "out"
    )
    assert code == 0, said.err
    removed = records.read_json(tmp_path / "out" / "prune.json")["removed"]
    load = transformers.AutoModelForCausalLM.from_pretrained
    whole, short = (load(path, dtype=torch.float32).eval() for path in (source, tmp_path / "out"))
    assert short.config.num_hidden_layers == 2
    with torch.no_grad(), residual_blocks(whole).without(removed):
        wanted = whole(TOKENS[:, :10] % 11, use_cache=False).logits
    torch.testing.assert_close(short(TOKENS[:, :10] % 11).logits, wanted, rtol=1e-4, atol=1e-5)
    kept = load_file(tmp_path / "out" / "model.safetensors")
    assert all(tensor.dtype == torch.bfloat16 for tensor in kept.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = short.generate(TOKENS[:, :4] % 11, max_new_tokens=4, do_sample=False)
    assert made.shape == (1, 8)


def test_identity_where_the_family_can_say_it(pruned, tmp_path):
    source = library_folder(tmp_path / "whole", "llama")
    code, said = pruned(
        source, "--by", "similarity", "--blocks", 1, "--context", 12, "--identity", "--out", tmp_path / "out"
    )
    assert code == 0 and "are identities now" in said.out, said.err
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").num_hidden_layers == 4


def test_what_depends_on_a_layers_number_is_refused(pruned, tmp_path):
    """GPT-2 may scale attention by the number of the layer: no config without a block computes the same."""
    source = library_folder(tmp_path / "whole", "gpt2", **KINDS["gpt2"], scale_attn_by_inverse_layer_idx=True)
    tensors = load_file(source / "model.safetensors")
    save_file(
        {n: 9 * t if "attn" in n else t for n, t in tensors.items()}, source / "model.safetensors", {"format": "pt"}
    )
    code, said = pruned(
        source, "--by", "random", "--seed", 1, "--blocks", 2, "--context", 12, "--out", tmp_path / "out"
    )
    assert code == 2 and "depends on its number" in said.err, said.err
    assert not (tmp_path / "out").exists()


def test_curve_of_several_rules(folder, pruned, tmp_path):
    curve, picture = tmp_path / "curve.json", tmp_path / "curve.svg"
    code, said = pruned(
        folder, "--by", "ledger", "taylor", "random", "--blocks", 3, "--curve", curve, "--plot", picture
    )
    assert code == 0 and "ledger     taylor     random" in said.out, said.err
    record = records.read_json(curve, "geowidth.prune_curve", 1)
    assert list(record["curves"]) == ["ledger", "taylor", "random"]
    ledger = record["curves"]["ledger"]
    assert [point["removed"] for point in ledger] == [[], [1], [1, 3], [1, 3, 2]]
    assert ledger[0]["difference"] == {"mean": 0, "standard_error": 0}
    assert len({points[0]["loss"]["mean"] for points in record["curves"].values()}) == 1
    assert all(np.isfinite(p["loss"]["mean"]) for points in record["curves"].values() for p in points)
    assert picture.read_text().lstrip().startswith("<?xml")


def test_curve_over_seeds(folder, pruned, tmp_path):
    """Random orders and windows of several seeds; one ledger; the model is that of the first seed."""
    curve, picture = tmp_path / "curve.json", tmp_path / "curve.svg"
    given = ["--by", "ledger", "similarity", "random", "--blocks", 3, "--seed", 7, "--seeds", 5, "--curve", curve]
    code, said = pruned(folder, *given, "--plot", picture)
    assert code == 0 and "random: " in said.out and "orders from 5 seeds; Spearman " in said.out, said.err
    record = records.read_json(curve)
    assert {rule: len(own) for rule, own in record["rankings"].items()} == {"ledger": 1, "similarity": 5, "random": 5}
    assert [one["seed"] for one in record["rankings"]["random"]] == [7, 8, 9, 10, 11]
    assert set(record["stability"]) == {"similarity", "random"} and record["seeds"] == 5
    last = record["curves"]["random"][3]["by_seed"]
    assert f"({min(one['loss']['mean'] for one in last):.3f} to " in said.out
    assert all(len(losses) == 3 for losses in record["windows"].values()) and "" in record["windows"]
    assert not (tmp_path / ".curve.json.partial").exists()
    given = ["--by", "random", "--blocks", 2, "--seed", 7, "--seeds", 3, "--curve", curve, "--out", tmp_path / "out"]
    assert pruned(folder, *given)[0] == 0
    first = record["rankings"]["random"][0]["order"]
    assert records.read_json(tmp_path / "out" / "prune.json")["removed"] == sorted(first[:2])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--blocks", "1", "--by", "random", "--seeds", "2", "--out", "OUT"], "a pruned model is of one"),
        (["--blocks", "1", "--by", "random", "--seeds", "0", "--curve", "CURVE"], "--seeds is 0"),
        (["--blocks", "4", "--by", "random", "--out", "OUT"], "blocks is 4; the model has 4, so allowed: 1 to 3"),
        (["--blocks", "0", "--by", "random", "--out", "OUT"], "--blocks is 0"),
        (["--blocks", "1", "--by", "best", "--out", "OUT"], "--by is 'best'; allowed: ledger, similarity"),
        (["--blocks", "1", "--by", "random"], "name a folder for the pruned model"),
        (["--blocks", "1", "--by", "random", "taylor", "--out", "OUT"], "2 rules came (random, taylor)"),
        (["--blocks", "1", "--by", "random", "--ledger", "x.json", "--out", "OUT"], "rule random reads none"),
        (["--blocks", "1", "--by", "ledger", "--ledger", "x.json", "--out", "OUT"], "x.json does not exist"),
        (["--blocks", "1", "--by", "random", "--identity", "--curve", "CURVE"], "no folder was named for it"),
        (["--blocks", "1", "--by", "random", "--plot", "x.svg", "--out", "OUT"], "give --curve FILE too"),
        (["--blocks", "1", "--by", "random", "--out", "MODEL"], "exists already"),
        (["--blocks", "1", "--by", "random", "--context", "9999", "--out", "OUT"], "the model takes"),
        (["--blocks", "1", "--by", "random", "--device", "tpu", "--out", "OUT"], "tpu"),
    ],
)
def test_bad_input_is_one_line_and_code_2(folder, pruned, tmp_path, arguments, words):
    places = {"OUT": tmp_path / "out", "MODEL": folder, "CURVE": tmp_path / "curve.json"}
    code, said = pruned(folder, *(places.get(word, word) for word in arguments))
    assert code == 2 and words in said.err and said.err.count("\n") == 1, said.err
    assert not (tmp_path / "out").exists() and not (tmp_path / "curve.json").exists()


def test_a_model_of_one_block_keeps_it(pruned, tmp_path):
    save_model(TaperedTransformer(ModelConfig(256, 1, 16, 2, (24,), 16), seed=1), tmp_path / "model")
    code, said = pruned(tmp_path / "model", "--by", "random", "--blocks", 1, "--out", tmp_path / "out")
    assert code == 2 and "has one block, and one must stay" in said.err, said.err


def test_models_without_a_loss_are_refused(pruned, tmp_path):
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SMALL)).save_pretrained(tmp_path / "bert")
    code, said = pruned(tmp_path / "bert", "--by", "magnitude", "--blocks", 1, "--out", tmp_path / "out")
    assert code == 2 and "predicts no next token" in said.err, said.err
    save_model(TaperedTransformer(CONFIG, seed=1), tmp_path / "model")
    code, said = pruned(tmp_path / "model", "--by", "ledger", "--blocks", 1, "--out", tmp_path / "out")
    assert code == 2 and "geowidth train --ledger writes one" in said.err
    Ledger(("a", "b"), 1, 0, [1, 1], [1, 1]).write(tmp_path / "model" / "ledger.json")
    code, said = pruned(tmp_path / "model", "--by", "ledger", "--blocks", 1, "--out", tmp_path / "out")
    assert code == 2 and "the ledger has 2 blocks, the model 4" in said.err
