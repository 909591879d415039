"""What `geowidth export` and its readers refuse, in one line that says what came and what to do."""

import json

import pytest
import torch
from exchange_models import damage, small

from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.exchange.checkpoint import read_checkpoint, widths_of
from geowidth.exchange.convert import checkpoint_from, model_from
from geowidth.exchange.formats import export, export_untrained
from geowidth.exchange.gguf_read import read_gguf
from geowidth.models import load_model, save_model
from geowidth.text.tokenizer import byte_vocabulary
from geowidth.text.tokenizer_json import vocabulary_from_files

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t.pop(UP), f"tensor {UP} is missing; expected shape \\[7, 32\\]"),
        (lambda t: t.update({UP: t[UP][:5].clone()}), f"tensor {UP} has shape \\[5, 32\\]; expected \\[7, 32\\]"),
        (lambda t: t.update(extra=torch.ones(3)), "tensor extra of shape \\[3\\] belongs to no part"),
        (lambda t: t[UP].view(-1)[9:10].fill_(float("nan")), f"tensor {UP} holds nan at element 9"),
        (lambda t: t.update({UP: t[UP].to(torch.int32)}), f"tensor {UP} is torch.int32"),
        (lambda t: t.update({"lm_head.weight": torch.ones(61, 32)}), "lm_head.weight differs"),
    ],
)
def test_damaged_tensors_are_named(folder, change, message):
    damage(folder, change)
    with pytest.raises(UserError, match=message) as caught:
        read_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_lying_truncated_and_pickled(folder, tmp_path, capsys):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_sizes": [24, 8, 0, 33]}))
    with pytest.raises(UserError, match="layers.1.mlp.gate_proj.weight has shape .7, 32.; expected .8, 32."):
        read_checkpoint(folder, infer_widths=True)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(UserError, match="model.safetensors is not a whole safetensors file"):
        read_checkpoint(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pytorch_model.bin is pickled"):
        read_checkpoint(folder)
    assert main(["export", str(folder), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists() and capsys.readouterr().err.count("\n") == 1
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(UserError, match="only files of its own folder"):
        read_checkpoint(folder)


def test_truncated_gguf(tmp_path):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    export(checkpoint_from(small()), "gguf", tmp_path / "out")
    data = (tmp_path / "out" / "model.gguf").read_bytes()
    for cut in (3, 100, len(data) // 2, len(data) - 40):
        (tmp_path / "cut.gguf").write_bytes(data[:cut])
        with pytest.raises(UserError, match="cut.gguf is no whole GGUF file"):
            read_gguf(tmp_path / "cut.gguf")


def test_widths_from_shapes(folder, tmp_path):
    """--from-checkpoint: a config that states one width for all, tensors that say otherwise."""
    config = json.loads((folder / "config.json").read_text())
    del config["intermediate_sizes"]
    config["model_type"] = "llama"
    inner = {"gate_proj": torch.ones(5, 32), "up_proj": torch.ones(5, 32), "down_proj": torch.ones(32, 5)}
    added = {f"model.layers.2.mlp.{name}.weight": tensor for name, tensor in inner.items()}
    added["model.layers.2.post_attention_layernorm.weight"] = torch.ones(32)
    damage(folder, lambda tensors: tensors.update(added))
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="gate_proj.weight has shape .24, 32.; expected .33, 32."):
        read_checkpoint(folder)
    out = tmp_path / "out"
    assert main(["export", "--from-checkpoint", str(folder), "--out", str(out)]) == 0
    assert json.loads((out / "config.json").read_text())["intermediate_sizes"] == [24, 7, 5, 33]
    with pytest.raises(UserError, match="layers.1.mlp.gate_proj.weight is missing; widths come from it"):
        widths_of({f"model.layers.{i}.mlp.gate_proj.weight": (3, 2) for i in (0, 2)})


def test_command(tmp_path, capsys):
    """A trained folder to a format and back; a schedule on a family; refusals before anything is written."""
    save_model(small(), tmp_path / "trained")
    out = tmp_path / "näm e" / "out"
    assert main(["export", str(tmp_path / "trained"), "--format", "nemotron-nas", "--out", str(out)]) == 0
    assert "zero rows were added" in capsys.readouterr().out
    assert read_checkpoint(out).shape.widths == (256, 256, 0, 256)
    back = tmp_path / "back"
    assert main(["export", str(out), "--format", "geowidth", "--dtype", "bfloat16", "--out", str(back)]) == 0
    assert load_model(back).embedding.dtype == torch.bfloat16

    from geowidth.allocate import allocate

    allocate("linear", layers=3, base_width=40, model_dimension=32).write(tmp_path / "schedule.json")
    family = {"model_type": "gemma2", "num_hidden_layers": 3, "intermediate_size": 40, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(family))
    job = ["export", "--schedule", str(tmp_path / "schedule.json"), "--family", str(tmp_path / "config.json")]
    assert main([*job, "--out", str(tmp_path / "tapered")]) == 0
    made = json.loads((tmp_path / "tapered" / "config.json").read_text())
    assert made["model_type"] == "geowidth_tapered_gemma2" and sum(made["intermediate_sizes"]) <= 120
    capsys.readouterr()
    for arguments, message in (
        ([*job, "--out", str(tmp_path / "tapered")], "exists already"),
        (
            [*job, "--out", str(tmp_path / "x"), "--format", "gguf"],
            "needs weights, and a schedule brings none",
        ),
        ([*job[:3], "--out", str(tmp_path / "x")], "go together"),
        (["export", "--out", str(tmp_path / "x")], "exactly one of"),
        (["export", str(tmp_path / "trained"), "--out", str(tmp_path / "x"), "--format", "onnx"], "allowed: hf,"),
        (["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "x")], "does not exist"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_untrained_refuses_a_schedule_of_another_depth(tmp_path):
    with pytest.raises(UserError, match="the schedule has 2 widths; config.json has 3 layers"):
        export_untrained({"model_type": "llama", "num_hidden_layers": 3}, (8, 9), tmp_path / "out")
    with pytest.raises(UserError, match="model_type is 'bert'"):
        export_untrained({"model_type": "bert", "num_hidden_layers": 2}, (8, 9), tmp_path / "out")


def test_tokenizers_that_gguf_has_no_name_for():
    files = byte_vocabulary().files()
    odd = json.loads(files["tokenizer.json"])
    odd["pre_tokenizer"] = {"type": "Whitespace"}
    with pytest.raises(UserError, match="pre_tokenizer has no name in GGUF"):
        vocabulary_from_files({"tokenizer.json": json.dumps(odd)})
    odd["model"]["type"] = "Unigram"
    with pytest.raises(UserError, match="only byte-level BPE"):
        vocabulary_from_files({"tokenizer.json": json.dumps(odd)})
    assert vocabulary_from_files({}) is None


@pytest.mark.parametrize(
    "value", [None, "x", -1, [], {}, [1], [None] * 4, {"rope_type": "linear", "factor": "a"}, True]
)
@pytest.mark.parametrize(
    "name", ["model_type", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "block_configs"]
)
def test_configs_out_of_order_never_crash(folder, name, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: value}))
    try:
        model_from(read_checkpoint(folder))  # some mean nothing but the default
    except UserError as error:
        assert "\n" not in str(error)


def test_folders_that_are_no_models_are_told_what_they_are(tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    save_model(small(), run / "arms" / "uniform" / "seed-0")
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.json").write_text('{"kind": "geowidth.training"}')
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    few = ["export", str(run / "arms" / "uniform" / "seed-0"), "--out"]
    for arguments, words in (
        (["export", str(run), "--out", "x"], "is a run folder; name one of its models, such as"),
        (["export", str(begun), "--out", "x"], "is not finished; run its command again"),
        (["export", "--from-checkpoint", str(begun), "--out", "x"], "is not finished; run its command again"),
        (["measure", str(run)], "is a run folder; name one of its models, such as"),
        (["measure", str(run / "arms" / "uniform" / "seed-0")], "has 61 token ids and no tokenizer.json"),
        ([*few, "."], "the folder you are in"),
        ([*few, str(tmp_path / "empty")], "the folder you are in"),
    ):
        assert main(arguments) == 2
        found = capsys.readouterr().err
        assert words in found and found.count("\n") == 1
    assert [path.name for path in (tmp_path / "empty").iterdir()] == []


def test_from_checkpoint_takes_our_own_folders(tmp_path):
    save_model(small(), tmp_path / "ours")
    assert main(["export", "--from-checkpoint", str(tmp_path / "ours"), "--out", str(tmp_path / "out")]) == 0
    assert read_checkpoint(tmp_path / "out").shape.widths == (24, 7, 0, 33)
