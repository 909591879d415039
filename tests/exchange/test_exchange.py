"""Checkpoints in and out: bits kept, conventions right, and damaged ones refused in one line that names the tensor."""

import json

import pytest
import torch
from exchange_models import CONFIGS, small
from safetensors.torch import load_file, save_file

from geowidth.errors import UserError
from geowidth.exchange.checkpoint import Checkpoint, read_checkpoint
from geowidth.exchange.convert import checkpoint_from, model_from
from geowidth.exchange.formats import export, nemotron_blocks, padded
from geowidth.exchange.gguf_read import halves_to_interleaved, interleaved_to_halves, read_gguf
from geowidth.exchange.shape import LlamaShape, stated_widths
from geowidth.models import ModelConfig, TaperedTransformer, load_model
from geowidth.text.tokenizer import byte_vocabulary, spell_bytes
from geowidth.text.tokenizer_json import vocabulary_from_files

IDS = torch.randint(0, 61, (2, 40), generator=torch.Generator().manual_seed(1))


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
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
        ({"num_key_value_heads": 3}, "3 key heads"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling is 'yarn'"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"intermediate_sizes": [3, 4]}, "one FFN width per layer"),
        ({"intermediate_sizes": [-1]}, "intermediate_sizes.0. is -1"),
    ):
        with pytest.raises(UserError, match=word):
            LlamaShape.from_config({**base, "model_type": "llama", **change})


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


def test_nothing_half_written(tmp_path, monkeypatch):
    from geowidth.exchange import formats

    monkeypatch.setattr(formats, "write_tensors", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(checkpoint_from(small()), "hf", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


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
