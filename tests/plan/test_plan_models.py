"""`geowidth plan measure --model`: sizes from configs alone, of every kind of model that can be measured."""

import json

import pytest

from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.exchange.convert import checkpoint_from
from geowidth.exchange.formats import export
from geowidth.models import ModelConfig, TaperedTransformer, save_model
from geowidth.plan.models import model_sizes

LLAMA = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 97}
LLAMA |= {"max_position_embeddings": 512, "intermediate_size": 48, "num_key_value_heads": 2}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 97, "n_positions": 64}
DISTILBERT = {"model_type": "distilbert", "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "vocab_size": 97}

# config, context, projections, width
CONFIGS = {
    "llama": (LLAMA, 256, 3, 48),
    "gemma3": ({"model_type": "gemma3", "text_config": LLAMA | {"model_type": "gemma3_text"}}, 256, 3, 48),
    "gpt2": (GPT2, 64, 2, 128),
    "opt": ({**LLAMA, "model_type": "opt", "intermediate_size": None, "ffn_dim": 40}, 256, 2, 40),
    "distilbert": ({**DISTILBERT, "max_position_embeddings": 64}, 64, 2, 48),
    "mixtral": ({**LLAMA, "model_type": "mixtral", "num_local_experts": 4}, 256, 3, 4 * 48),
    "qwen3_moe": ({**LLAMA, "model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 24}, 256, 3, 4 * 24),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_of_every_kind(tmp_path, name):
    config, context, projections, width = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = model_sizes(tmp_path)
    assert (found.config.layers, found.config.dimension, found.config.context) == (3, 32, context)
    assert found.config.widths == (width,) * 3 and found.config.projections == projections
    assert found.windows(256) == 32 and found.windows(64) == 16


def test_parameters_are_those_of_the_model_however_it_is_stored(tmp_path):
    model = TaperedTransformer(ModelConfig(256, 3, 32, 4, (24, 7, 33), 48, key_heads=2, tied=False))
    save_model(model, tmp_path / "ours")
    assert model_sizes(tmp_path / "ours").parameters == model.parameter_count()
    assert model_sizes(tmp_path / "ours").windows(256) == 256  # of bytes: every token with a context of its own
    for form, file in (("hf", ""), ("gguf", "model.gguf")):
        export(checkpoint_from(model), form, tmp_path / form)
        assert model_sizes(tmp_path / form / file).parameters == model.parameter_count()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "t5"}, "model_type is 't5'; allowed: bert"),
        ({"hidden_size": "wide"}, "hidden_size or n_embd or dim or d_model is 'wide'"),
        ({"num_hidden_layers": None}, "num_hidden_layers or n_layer or n_layers is None"),
        ({"num_key_value_heads": 3}, "4 heads do not share 3 key heads"),
    ],
)
def test_configs_that_say_nothing_of_use_are_refused(tmp_path, change, words):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | change))
    with pytest.raises(UserError, match=words):
        model_sizes(tmp_path)


def test_the_command_names_the_memory_of_the_states(tmp_path, capsys, monkeypatch):
    asked = []

    def probe(request):
        asked.append(request)
        return {"seconds": [float(s) for s in request["sizes"]], "window": 0.001, "peak_bytes": 2000}

    monkeypatch.setattr("geowidth.plan.estimation.run_probe", probe)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    words = ["plan", "measure", "--model", str(tmp_path), "--tokens", "100"]
    assert main(words) == 0
    assert "76.8 kB of it for the states of 100 tokens" in capsys.readouterr().out  # 2 x 3 layers x 100 x 32 x 4 bytes
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["state_bytes"] == 2 * 3 * 100 * 32 * 4
    assert asked[0]["model"]["layers"] == 1  # one block stands for a large model
    assert main([*words, "--preset", "nano"]) == 2
    assert "give one of them" in capsys.readouterr().err
