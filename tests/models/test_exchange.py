"""Checkpoints in and out: bits kept, conventions right, and damaged ones refused in one line that names the tensor."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.models import ModelConfig, TaperedTransformer, load_model, save_model
from geowidth.models.exchange.checkpoint import Checkpoint, read_checkpoint, widths_of
from geowidth.models.exchange.convert import checkpoint_from, model_from
from geowidth.models.exchange.formats import export, export_untrained, nemotron_blocks, padded
from geowidth.models.exchange.gguf_read import halves_to_interleaved, interleaved_to_halves, read_gguf
from geowidth.models.exchange.shape import LlamaShape, stated_widths
from geowidth.models.exchange.tokenizer import byte_vocabulary, spell_bytes, vocabulary_from_files

IDS = torch.randint(0, 61, (2, 40), generator=torch.Generator().manual_seed(1))
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
CONFIGS = {
    "plain": {},
    "grouped": {"key_heads": 2, "rope_base": 500.0, "norm_epsilon": 1e-3},
    "one key head": {"key_heads": 1, "tied": False},
    "wide heads": {"head_size": 10, "key_heads": 2},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {"rope_scaling": LLAMA3, "tied": False},
}


def small(name="grouped", widths=(24, 7, 0, 33), dtype=torch.float32):
    model = TaperedTransformer(ModelConfig(61, len(widths), 32, 4, widths, 48, **CONFIGS[name]), seed=2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # gains of 1 would hide an exchanged pair of norms
                parameter.add_(torch.linspace(-0.2, 0.3, len(parameter)))
    return model.to(dtype).eval()


def logits(model):
    with torch.no_grad():
        return model(IDS)


@pytest.mark.parametrize("name", CONFIGS)
def test_round_trips_keep_every_bit(name, tmp_path):
    """Ours to a checkpoint and back, in memory, through hf, and through our own folder: equal logits, bit for bit."""
    model = small(name)
    wanted = logits(model)
    assert torch.equal(logits(model_from(checkpoint_from(model))), wanted)
    for form in ("hf", "geowidth"):
        export(checkpoint_from(model), form, tmp_path / form)
    assert torch.equal(logits(model_from(read_checkpoint(tmp_path / "hf"))), wanted)
    assert torch.equal(logits(load_model(tmp_path / "geowidth")), wanted)
    assert load_model(tmp_path / "geowidth").config == model.config


@pytest.mark.parametrize("name", CONFIGS)
def test_same_logits_as_transformers(name, tmp_path):
    """The rotary convention, the norms, grouped queries and both rope scalings agree with Hugging Face's Llama."""
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    model = small(name, widths=(24, 24))
    export(checkpoint_from(model), "hf-padded", tmp_path / "stock")
    stock = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "stock").eval()
    with torch.no_grad():
        torch.testing.assert_close(stock(IDS).logits, logits(model), rtol=1e-4, atol=2e-5)
    stock.save_pretrained(tmp_path / "saved")  # as the library itself writes a checkpoint
    assert torch.equal(logits(model_from(read_checkpoint(tmp_path / "saved"))), logits(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gguf_round_trip(dtype, tmp_path):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    model = small(dtype=dtype)
    export(checkpoint_from(model), "gguf", tmp_path / "out")
    back = read_gguf(tmp_path / "out" / "model.gguf")
    assert back.shape.widths == (24, 7, 32, 33)
    assert back.shape.norm_epsilon == 1e-3 and back.shape.rope_base == 500.0
    ours = padded(checkpoint_from(model), back.shape.widths)
    for tensor_name, tensor in ours.tensors.items():
        assert torch.equal(back.tensors[tensor_name], tensor.float()), tensor_name


def test_gguf_llama3_factors_are_written(tmp_path):
    gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
    export(checkpoint_from(small("llama3")), "gguf", tmp_path / "out")
    reader = gguf.GGUFReader(str(tmp_path / "out" / "model.gguf"))
    factors = next(tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight").data
    assert factors[0] == pytest.approx(factors.min()) and factors.max() == pytest.approx(8.0)
    with pytest.raises(UserError, match="rope_freqs.weight scales the rotary angles"):
        read_gguf(tmp_path / "out" / "model.gguf")


def test_permutation_of_rotary_features():
    """Interleaving turns (first half, second half) of each head into neighbouring pairs, and is undone exactly."""
    rows = torch.arange(12.0)[:, None]
    assert halves_to_interleaved(rows, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    for shape, heads in (((12, 5), 2), ((12,), 3), ((30, 1), 5)):
        values = torch.randn(shape)
        assert torch.equal(interleaved_to_halves(halves_to_interleaved(values, heads), heads), values)


def test_padding_adds_exactly_nothing():
    model = small()
    wide = model_from(padded(checkpoint_from(model), (64, 64, 64, 64)))
    assert wide.config.widths == (64, 64, 64, 64)
    torch.testing.assert_close(logits(wide), logits(model), rtol=0, atol=2e-6)


@pytest.mark.parametrize("dimension", [32, 576, 3000, 4096, 8191])
def test_nemotron_widths_survive_their_rounding(dimension):
    """Every multiple of 256 comes back from ffn_mult by the readers' formula, for awkward dimensions too."""
    widths = tuple(range(0, 256 * 130, 256))
    shape = LlamaShape("llama", 61, dimension, 1, 1, 2, widths, 8, 1e4, None, 1e-5, True)
    config = {"num_hidden_layers": len(widths), "hidden_size": dimension, "block_configs": nemotron_blocks(shape)}
    assert tuple(stated_widths(json.loads(json.dumps(config)))) == widths


def test_import_of_families():
    """What our model has no place for is refused by name; a sliding window limits the context."""
    base = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    base |= {"num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64}
    for family, word in (("qwen2", "qkv_bias"), ("qwen3", "qk_norm")):
        shape = LlamaShape.from_config({**base, "model_type": family})
        checkpoint = Checkpoint(shape, {name: torch.zeros(size) for name, size in shape.tensors().items()})
        with pytest.raises(UserError, match=f"a {family} model with {word}"):
            model_from(checkpoint)
    shape = LlamaShape.from_config({**base, "model_type": "mistral", "sliding_window": 16})
    checkpoint = Checkpoint(shape, {name: torch.zeros(size) for name, size in shape.tensors().items()})
    assert model_from(checkpoint).config.context == 16
    for change, word in (
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"num_key_value_heads": 3}, "3 key heads"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling is 'yarn'"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"intermediate_sizes": [3, 4]}, "one FFN width per layer"),
        ({"intermediate_sizes": [-1]}, "intermediate_sizes.0. is -1"),
    ):
        with pytest.raises(UserError, match=word):
            LlamaShape.from_config({**base, "model_type": "llama", **change})


@pytest.fixture
def folder(tmp_path):
    export(checkpoint_from(small()), "hf", tmp_path / "model")
    return tmp_path / "model"


def damage(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


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


def test_sharded_checkpoint(folder):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[:10], "b.safetensors": names[10:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    whole = logits(model_from(read_checkpoint(folder)))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(logits(model_from(read_checkpoint(folder))), whole)


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
        widths_of({f"model.layers.{i}.mlp.gate_proj.weight": torch.ones(3, 2) for i in (0, 2)})


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
        ([*job, "--out", str(tmp_path / "x"), "--format", "gguf"], "--schedule writes hf or megatron"),
        ([*job[:3], "--out", str(tmp_path / "x")], "go together"),
        (["export", "--out", str(tmp_path / "x")], "exactly one of"),
        (["export", str(tmp_path / "trained"), "--out", str(tmp_path / "x"), "--format", "onnx"], "allowed: hf,"),
        (["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "x")], "does not exist"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_nothing_half_written(tmp_path, monkeypatch):
    from geowidth.models.exchange import formats

    monkeypatch.setattr(formats, "write_tensors", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(checkpoint_from(small()), "hf", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_untrained_refuses_a_schedule_of_another_depth(tmp_path):
    with pytest.raises(UserError, match="the schedule has 2 widths; config.json has 3 layers"):
        export_untrained({"model_type": "llama", "num_hidden_layers": 3}, (8, 9), tmp_path / "out")
    with pytest.raises(UserError, match="model_type is 'bert'"):
        export_untrained({"model_type": "bert", "num_hidden_layers": 2}, (8, 9), tmp_path / "out")


def test_byte_tokenizer():
    """256 different spellings, printable ones as themselves; read back from its own files."""
    spelled = spell_bytes(range(256))
    assert len(set(spelled)) == 256 and spelled[65] == "A" and spelled[32] == "Ġ" and spelled[10] == "Ċ"
    files = byte_vocabulary().files()
    assert vocabulary_from_files(files) == byte_vocabulary()
    tokenizers = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
    text = "für\n\n  alle 12 Ā \x7f"
    assert tokenizer.encode(text).ids == list(text.encode()) and tokenizer.decode(tokenizer.encode(text).ids) == text


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


def test_new_fields_change_no_older_model():
    """Models without the fields for foreign models are stored, drawn and counted as before."""
    config = ModelConfig(256, 2, 32, 4, (8, 9), 16)
    assert not {"key_heads", "head_size", "tied", "rope_scaling"} & set(config.to_json())
    assert ModelConfig.from_json(config.to_json()) == config
    model = TaperedTransformer(config, seed=5)
    assert model.blocks[0].attention.qkv.shape == (96, 32)
    # Drawn before those fields existed.
    assert float(model.blocks[0].attention.qkv.detach().double().sum()) == pytest.approx(-10.612536209708196, rel=1e-12)
    with pytest.raises(UserError, match="4 heads do not share 3 key heads"):
        ModelConfig(256, 2, 32, 4, (8, 9), 16, key_heads=3)
    with pytest.raises(UserError, match="allowed: linear or llama3"):
        ModelConfig(256, 2, 32, 4, (8, 9), 16, rope_scaling={"rope_type": "yarn"})
