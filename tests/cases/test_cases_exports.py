"""Cases of exports and imports: every field carried, translated or refused by name, and files that lie."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.exchange.checkpoint import read_checkpoint
from geowidth.exchange.convert import model_from
from geowidth.exchange.formats import export

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
TINY = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 24}
TINY |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
TRANSFORMERS_4 = Path(os.environ.get("GEOWIDTH_TRANSFORMERS_4", Path(sys.prefix) / "transformers-4"))
HF_FORMATS = ("hf", "hf-padded", "nemotron-nas")


def saved(folder, kind="Llama", seed=0, **fields):
    """A random model of transformers, saved; its config.json then states exactly TINY and `fields`."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**TINY | fields)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.1
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    stated = TINY | {"model_type": config.model_type, "tie_word_embeddings": False, "head_dim": 8} | fields
    (folder / "config.json").write_text(json.dumps(stated))
    return model


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


def logits(model, ids):
    with torch.no_grad():
        found = model(ids)
    return getattr(found, "logits", found)


def some_ids(length, vocabulary=61):
    return torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(1))


def written(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return str(tmp_path_factory.mktemp("modules"))


@pytest.fixture(autouse=True)
def quiet(monkeypatch, modules):
    """Modelling files are not left in the user's own cache."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", modules)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


# ---------------------------------------------------------------------------------------------- N8: windows


def test_N8_null_window_means_no_window(tmp_path):
    small = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "head_dim": 8,
    }
    source = saved(tmp_path / "m", "Mistral", **small, sliding_window=None, max_position_embeddings=8192)
    checkpoint = read_checkpoint(tmp_path / "m")
    assert checkpoint.shape.reach == 8192
    ids = some_ids(4200)
    wanted = logits(source, ids)
    for form in HF_FORMATS:
        export(checkpoint, form, tmp_path / form)
        assert "sliding_window" in written(tmp_path / form) and written(tmp_path / form)["sliding_window"] is None
        assert loaded(tmp_path / form).config.sliding_window is None
    torch.testing.assert_close(logits(loaded(tmp_path / "hf"), ids), wanted, rtol=0, atol=1e-5)
    own = model_from(checkpoint)
    assert own.config.context == 8192
    torch.testing.assert_close(logits(own, ids), wanted, rtol=0, atol=1e-5)
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    export(checkpoint, "gguf", tmp_path / "gguf")


@pytest.mark.parametrize("fields, windows", [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 7}, 7)])
def test_N8_absent_null_and_value_are_three_states(tmp_path, fields, windows):
    saved(tmp_path / "m", "Mistral", **fields)
    assert read_checkpoint(tmp_path / "m").shape.windows == (windows,) * 4
    export(read_checkpoint(tmp_path / "m"), "hf-padded", tmp_path / "out")
    assert {k: v for k, v in written(tmp_path / "out").items() if k == "sliding_window"} == fields


QWEN_WINDOWS = {
    "mixed by max_window_layers": ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}, 2),
    "all": ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, 4),
    "the default of 28 layers": ({"use_sliding_window": True, "sliding_window": 5}, 0),
    "not in use": ({"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0}, 0),
    "absent flag": ({"sliding_window": 5, "max_window_layers": 0}, 0),
    "null window in use": ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, 0),
    "null layer_types": (
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3, "layer_types": None}, 1,
    ),
    "layer_types": (
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 9}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
@pytest.mark.parametrize("name", QWEN_WINDOWS)
def test_N8_windows_of_qwen(tmp_path, family, name):
    """Logits beyond the window are the source's in hf and hf-padded; formats without windows refuse by name."""
    fields, windowed = QWEN_WINDOWS[name]
    source = saved(tmp_path / "m", family, **fields, head_dim=8)
    checkpoint = read_checkpoint(tmp_path / "m")
    assert sum(window is not None for window in checkpoint.shape.windows) == windowed
    ids = some_ids(40)
    for form in ("hf", "hf-padded"):
        export(checkpoint, form, tmp_path / form)
        assert torch.equal(logits(loaded(tmp_path / form), ids), logits(source, ids))
    if windowed:
        for form in ("gguf", "nemotron-nas") + (("megatron",) if windowed < 4 else ()):
            with pytest.raises(UserError, match="sliding_window|qwen|norms|windows of some layers"):
                export(checkpoint, form, tmp_path / f"no-{form}")
            assert not (tmp_path / f"no-{form}").exists()


def test_N8_what_cannot_be_meant_is_refused_by_name(tmp_path):
    for family, fields, word in (
        ("qwen2", {"layer_types": ["full_attention"] * 3}, "layer_types must be a list"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 4}, "layer_types must be a list"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 4}, "layer_types has sliding_attention, but"),
        ("qwen3", {"use_sliding_window": None}, "use_sliding_window is null"),
        ("mistral", {"layer_types": ["full_attention"] * 4}, "layer_types in a mistral model"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("llama", {"rms_norm_eps": None}, "rms_norm_eps is null"),
        ("llama", {"attention_bias": None}, "attention_bias is null"),
        ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        ("qwen3", {"head_dim": None}, "head_dim is null"),
        ("llama", {"hidden_act": None}, "hidden_act is null"),
        ("llama", {"rope_theta": None}, "rope_theta is null"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3 lacks low_freq_factor"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}}, "and type 'dynamic'"),
        ("qwen2", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "of its own for full_attention"),
        ("llama", {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta is stated in"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config is stated"),
        ("llama", {"per_layer_config": {"1": {"intermediate_size": 8}}}, "per_layer_config is stated"),
        ("llama", {"auto_map": {"AutoModelForCausalLM": "mine.Model"}}, "auto_map names code"),
    ):
        folder = tmp_path / f"{family}-{len(list(tmp_path.iterdir()))}"
        saved(folder, family.capitalize())
        (folder / "config.json").write_text(json.dumps(TINY | {"model_type": family, "head_dim": 8} | fields))
        with pytest.raises(UserError, match=word) as caught:
            read_checkpoint(folder)
        assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------- N10: ids and fields


@pytest.mark.parametrize("form", HF_FORMATS)
def test_N10_ids_of_begin_end_and_padding(tmp_path, form):
    saved(tmp_path / "m", bos_token_id=3, eos_token_id=7, pad_token_id=9)
    export(read_checkpoint(tmp_path / "m"), form, tmp_path / "out")
    model = loaded(tmp_path / "out")
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (3, 7, 9)
    assert model.generation_config.eos_token_id == 7 and model.generation_config.bos_token_id == 3
    assert not (tmp_path / "out" / "generation_config.json").exists()


@pytest.mark.parametrize("form", HF_FORMATS)
@pytest.mark.parametrize(
    "fields",
    [
        {"bos_token_id": None, "eos_token_id": [7, 9, 11], "pad_token_id": -1},
        {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0, "sep_token_id": 5},
        {"initializer_range": 0.5, "attention_dropout": 0.25, "use_cache": False, "pretraining_tp": 2},
        {"torch_dtype": "bfloat16", "transformers_version": "4.31.0", "_name_or_path": "x", "my own": {"a": [None, 1]}},
        {"rope_scaling": None, "head_dim": None, "attention_dropout": 0, "tokenizer_class": "LlamaTokenizerFast"},
        {"rope_theta": 500000, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "mine": 3}},
        {"rope_scaling": {"type": "linear", "factor": 2}},
        {"id2label": {"0": "a", "1": "b", "2": "c"}, "temperature": 0.5, "attention_bias": True, "mlp_bias": True},
    ],
)
def test_N10_every_field_is_carried_unchanged(tmp_path, form, fields):
    """config.json of the export holds every field of the source's but those the format states its own way."""
    saved(tmp_path / "m", **{k: v for k, v in fields.items() if k in ("attention_bias", "mlp_bias")})
    source = TINY | {"model_type": "llama", "tie_word_embeddings": False} | fields
    (tmp_path / "m" / "config.json").write_text(json.dumps(source))
    export(read_checkpoint(tmp_path / "m"), form, tmp_path / "out")
    found = written(tmp_path / "out")
    own = {"model_type", "architectures", "auto_map", "intermediate_sizes", "block_configs", "intermediate_size"}
    assert {k: v for k, v in found.items() if k not in own} == {k: v for k, v in source.items() if k not in own}


def test_N10_newer_rope_is_translated_for_both_versions(tmp_path):
    """rope_parameters, which transformers 4 does not read, becomes rope_theta and rope_scaling."""
    for stated, base, scaling in (
        ({"rope_type": "default", "rope_theta": 500000.0}, 500000.0, None),
        ({"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0}, 77.0, {"rope_type": "linear", "factor": 3.0}),
    ):
        folder = tmp_path / str(base)
        source = saved(folder, rope_parameters=stated)
        export(read_checkpoint(folder), "hf", folder / "out")
        found = written(folder / "out")
        assert found["rope_theta"] == base and found.get("rope_scaling") == scaling and "rope_parameters" not in found
        ids = some_ids(30)
        assert torch.equal(logits(loaded(folder / "out"), ids), logits(source, ids))


def test_N10_null_key_heads_are_one_a_head(tmp_path):
    saved(tmp_path / "m", "Mistral", num_key_value_heads=4)
    config = written(tmp_path / "m") | {"num_key_value_heads": None}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    assert read_checkpoint(tmp_path / "m").shape.key_heads == 4  # absent would mean 8
    export(read_checkpoint(tmp_path / "m"), "hf", tmp_path / "out")
    assert loaded(tmp_path / "out").config.num_key_value_heads == 4


def test_N10_defaults_of_absent_fields_are_the_librarys():
    from geowidth.exchange.fields import DEFAULTS

    for family, defaults in DEFAULTS.items():
        config = transformers.AutoConfig.for_model(family)
        for name, value in defaults.items():
            if value is not None and name != "sliding_window":
                assert getattr(config, name) == value, (family, name)


def test_N10_files_beside_the_weights_are_carried_byte_by_byte(tmp_path):
    saved(tmp_path / "m")
    files = {
        "generation_config.json": b'{"eos_token_id": [1, 2], "temperature": null}',
        "chat_template.jinja": b"{{ x }}",
    }
    files |= {"tokenizer.model": bytes(range(256)), "added_tokens.json": b"{}", "special_tokens_map.json": b"{ }"}
    files |= {"additional_chat_templates/tool.jinja": "é".encode(), "vocab.json": b"{}", "merges.txt": b"#v\r\n"}
    for name, content in files.items():
        (tmp_path / "m" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "m" / name).write_bytes(content)
    for form in (*HF_FORMATS, "megatron", "geowidth"):
        export(read_checkpoint(tmp_path / "m"), form, tmp_path / form)
        for name, content in files.items():
            assert (tmp_path / form / name).read_bytes() == content, (form, name)
    (tmp_path / "m" / "tokenizer_config.json").write_bytes(b"\xff")
    assert main(["export", str(tmp_path / "m"), "--out", str(tmp_path / "x")]) == 2


def test_N10_our_own_format_and_back_keeps_the_source(tmp_path):
    """hf to geowidth and to hf again: ids, family and windows of the source return."""
    source = saved(tmp_path / "m", "Mistral", sliding_window=7, eos_token_id=9, attention_dropout=0.5)
    assert main(["export", str(tmp_path / "m"), "--format", "geowidth", "--out", str(tmp_path / "own")]) == 0
    assert main(["export", str(tmp_path / "own"), "--format", "hf-padded", "--out", str(tmp_path / "back")]) == 0
    expected = written(tmp_path / "m") | {"architectures": ["MistralForCausalLM"]}
    assert written(tmp_path / "back") == expected
    ids = some_ids(30)
    assert torch.equal(logits(loaded(tmp_path / "back"), ids), logits(source, ids))
    (tmp_path / "own" / "source_config.json").write_text(json.dumps(expected | {"rms_norm_eps": 0.5}))
    assert main(["export", str(tmp_path / "own"), "--out", str(tmp_path / "x")]) == 2


def test_N10_our_byte_models_state_that_they_have_no_ids(tmp_path):
    from geowidth.exchange.convert import checkpoint_from
    from geowidth.models import ModelConfig, TaperedTransformer

    model = TaperedTransformer(ModelConfig(256, 2, 32, 4, (9, 12), 16), seed=0)
    for form in HF_FORMATS:
        export(checkpoint_from(model), form, tmp_path / form)
        found = written(tmp_path / form)
        assert all(found[f"{role}_token_id"] is None for role in ("bos", "eos", "pad"))
        assert loaded(tmp_path / form).generation_config.eos_token_id is None
        assert not {"initializer_range", "attention_dropout", "use_cache"} & set(found)


def test_schedule_export_carries_tokenizer_and_fields(tmp_path):
    from geowidth.allocate import allocate

    family = TINY | {"model_type": "llama", "eos_token_id": [3, 4], "pad_token_id": None, "mine": 1}
    family |= {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    (tmp_path / "config.json").write_text(json.dumps(family))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        (tmp_path / name).write_text('{"a": null}')
    allocate("linear", layers=4, base_width=24, model_dimension=32).write(tmp_path / "s.json")
    for form, named in (("hf", "config.json"), ("megatron", ".")):
        job = ["export", "--schedule", str(tmp_path / "s.json"), "--family", str(tmp_path / named), "--format", form]
        assert main([*job, "--out", str(tmp_path / form)]) == 0
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
            assert (tmp_path / form / name).read_text() == '{"a": null}'
    found = written(tmp_path / "hf")
    assert found["eos_token_id"] == [3, 4] and found["pad_token_id"] is None and found["rope_theta"] == 5e5


# ------------------------------------------------------------------------------------- H5, N28: files that lie

LOADER = """
import json, sys, torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM
transformers.utils.logging.set_verbosity_error()
answers = {"version": transformers.__version__}
for name, folder in json.loads(sys.argv[1]).items():
    for auto in (AutoModelForCausalLM, AutoModel):
        for options in ({}, {"ignore_mismatched_sizes": True, "output_loading_info": True}):
            try:
                auto.from_pretrained(folder, trust_remote_code=True, **options)
                answer = "loaded"
            except Exception as error:
                answer = str(error)
            answers.setdefault(name, []).append(answer)
print("ANSWERS", json.dumps(answers))
"""
UP = "model.layers.1.mlp.up_proj.weight"


def _sharded(folder):
    """The weights of a folder in two files with an index, without one tensor of an FFN."""
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(UP)
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[:9], "model-2.safetensors": names[9:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


def _damaged(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


DAMAGES = {
    "dropped": lambda t: t.pop(UP),
    "renamed": lambda t: t.update({UP.replace("up", "upp"): t.pop(UP)}),
    "misshaped": lambda t: t.update({UP: t[UP][:5].clone()}),
    "one too many": lambda t: t.update({"model.layers.1.mlp.bias": torch.ones(3)}),
    "a dropped norm": lambda t: t.pop("model.norm.weight"),
}


@pytest.mark.parametrize("major", [5, 4])
def test_H5_generated_class_refuses_tensors_that_are_not_its_own(tmp_path, major):
    if major == 4 and not TRANSFORMERS_4.is_dir():
        pytest.skip(f"no transformers 4 in {TRANSFORMERS_4}; `make test` puts it there")
    saved(tmp_path / "m")
    folders = {}
    for form in ("hf", "nemotron-nas"):
        for name in ("whole", "sharded", *DAMAGES) if form == "hf" else ("whole", "dropped"):
            folders[f"{form} {name}"] = folder = tmp_path / f"{form}-{name.replace(' ', '-')}"
            export(read_checkpoint(tmp_path / "m"), form, folder)
            if name in DAMAGES:
                _damaged(folder, DAMAGES[name])
            elif name == "sharded":
                _sharded(folder)
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": str(TRANSFORMERS_4) if major == 4 else "", "OMP_NUM_THREADS": "1"}
    job = [sys.executable, "-c", LOADER, json.dumps({name: str(folder) for name, folder in folders.items()})]
    done = subprocess.run(job, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWERS"))
    answers = json.loads(line.removeprefix("ANSWERS "))
    assert answers.pop("version").startswith(f"{major}.")
    for name, found in answers.items():
        assert len(found) == 4
        if name.endswith("whole"):
            assert set(found) == {"loaded"}, (name, found)
        else:
            tensor = "norm" if name.endswith("norm") else "layers.1.mlp"
            assert all(tensor in answer or "mismatch" in answer for answer in found), (name, found)


@pytest.mark.parametrize(
    "index",
    [
        [], {}, None, 3, "x", {"weight_map": []}, {"weight_map": {}}, {"weight_map": None}, {"weight_map": {"a": 3}},
        {"weight_map": {"a": None}}, {"weight_map": {"a": ["m"]}}, {"weight_map": {"a": "../m.safetensors"}},
        {"weight_map": {"a": "/etc/passwd"}}, {"weight_map": {"a": "pytorch_model.bin"}}, {"weight_map": {"a": ""}},
        {"weight_map": {"a": ".."}}, {"weight_map": {"a": "absent.safetensors"}}, {"weight_map": "model.safetensors"},
    ],
)  # fmt: skip
def test_N28_index_of_another_shape(tmp_path, capsys, index):
    saved(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    for command in ("export", "export --from-checkpoint"):
        assert main([*command.split(), str(tmp_path / "m"), "--out", str(tmp_path / "out")]) == 2
        assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_layers_that_the_files_do_not_hold(tmp_path):
    saved(tmp_path / "m")
    for layers in (5, 50_000, 100_001, 2**62):
        (tmp_path / "m" / "config.json").write_text(
            json.dumps(TINY | {"model_type": "llama", "num_hidden_layers": layers})
        )
        with pytest.raises(UserError, match=f"config.json states {layers} layers; the files hold 4"):
            read_checkpoint(tmp_path / "m")


def test_N16_pruned_qwen_by_name_and_way_out(tmp_path, capsys):
    """Layers sliced to widths of their own: refused by tensor and shapes; --from-checkpoint gives the same logits."""
    source = saved(tmp_path / "m", "Qwen2", intermediate_size=64)
    widths = (64, 41, 24, 64)

    def prune(tensors):
        for layer, width in enumerate(widths):
            for name, axis in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
                key = f"model.layers.{layer}.mlp.{name}.weight"
                tensors[key] = tensors[key].narrow(axis, 0, width).contiguous()

    _damaged(tmp_path / "m", prune)
    assert main(["export", str(tmp_path / "m"), "--out", str(tmp_path / "x")]) == 2
    told = capsys.readouterr().err
    assert "layers.1.mlp.gate_proj.weight has shape [41, 32]; expected [64, 32]" in told and "--from-checkpoint" in told
    with torch.no_grad():
        for layer, width in zip(source.model.layers, widths, strict=True):
            layer.mlp.down_proj.weight[:, width:] = 0
    assert main(["export", "--from-checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "out")]) == 0
    ids = some_ids(20)
    torch.testing.assert_close(logits(loaded(tmp_path / "out"), ids), logits(source, ids), rtol=0, atol=1e-5)


def test_N10_dtype_is_translated_where_it_is_changed(tmp_path):
    saved(tmp_path / "m", torch_dtype="float32")
    assert main(["export", str(tmp_path / "m"), "--dtype", "bfloat16", "--out", str(tmp_path / "out")]) == 0
    assert written(tmp_path / "out")["torch_dtype"] == "bfloat16" and "dtype" not in written(tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors")[UP].dtype == torch.bfloat16


def test_tensors_of_several_dtypes_keep_every_bit_in_our_own_model(tmp_path):
    saved(tmp_path / "m")
    _damaged(tmp_path / "m", lambda t: t.update({name: v.bfloat16() for name, v in t.items() if "proj" in name}))
    checkpoint = read_checkpoint(tmp_path / "m")
    norm = "model.layers.0.input_layernorm.weight"
    assert torch.equal(model_from(checkpoint).blocks[0].attention_norm.weight, checkpoint.tensors[norm])
    _damaged(tmp_path / "m", lambda t: t.update({UP: t[UP].to(torch.float8_e4m3fn)}))
    with pytest.raises(UserError, match="is torch.float8_e4m3fn; allowed"):
        read_checkpoint(tmp_path / "m")


@pytest.mark.parametrize(
    "kind, fields, wanted",
    [
        ("Llama", {"attention_dropout": 0.2, "initializer_range": 0.5}, {"--attention-dropout": 0.2}),
        ("Llama", {"initializer_range": 0.5}, {"--attention-dropout": 0.0, "--init-method-std": 0.5}),
        ("Mistral", {"sliding_window": 7}, {"--window-size": "6,0"}),
        ("Mistral", {"sliding_window": None}, {"--disable-bias-linear": True}),
        ("Qwen2", {}, {"--add-qkv-bias": True, "--disable-bias-linear": True}),
        ("Qwen3", {"head_dim": 8}, {"--qk-layernorm": True}),
        ("Llama", {"attention_bias": True, "mlp_bias": True}, {"--disable-bias-linear": False}),
        ("Llama", {"attention_bias": True}, "attention_bias without mlp_bias"),
        (
            "Llama",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            {"--rotary-seq-len-interpolation-factor": 2},
        ),
        ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.5}}, "linear rope factor of 2.5"),
        ("Llama", {"rope_theta": 500000.0}, {"--rotary-base": 500000, "--hidden-dropout": 0.0}),
    ],
)
def test_megatron_arguments_state_or_refuse_every_convention(tmp_path, kind, fields, wanted):
    saved(tmp_path / "m", kind, **fields)
    if isinstance(wanted, str):
        with pytest.raises(UserError, match=wanted):
            export(read_checkpoint(tmp_path / "m"), "megatron", tmp_path / "out")
        return
    export(read_checkpoint(tmp_path / "m"), "megatron", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "heterogeneous_layers.json").read_text())["arguments"]
    assert wanted.items() <= found.items()


def test_absent_fields_keep_their_familys_defaults_in_another_familys_format(tmp_path):
    """A mistral without num_key_value_heads has 8; nemotron-nas is a llama, whose default is one a head."""
    fields = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 4}
    source = saved(tmp_path / "m", "Mistral", **fields)
    config = written(tmp_path / "m")
    for name in ("num_key_value_heads", "max_position_embeddings"):
        del config[name]
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"sliding_window": None}))
    ids = some_ids(20)
    for form in HF_FORMATS:
        export(read_checkpoint(tmp_path / "m"), form, tmp_path / form)
        model = loaded(tmp_path / form)
        assert model.config.num_key_value_heads == 8 and model.config.max_position_embeddings == 131072
        torch.testing.assert_close(logits(model, ids), logits(source, ids), rtol=0, atol=1e-5)


def test_N16_our_own_export_of_qwen_is_measured_again(tmp_path):
    from geowidth.measure import capture
    from geowidth.measure.opening import open_model
    from geowidth.text.tokenizer import byte_vocabulary

    saved(tmp_path / "m", "Qwen2", vocab_size=256)
    for name, content in byte_vocabulary().files().items():
        (tmp_path / "m" / name).write_text(content)
    export(read_checkpoint(tmp_path / "m"), "hf", tmp_path / "out")
    ids = some_ids(40, 256)[0]
    first, again = (capture(open_model(tmp_path / name).model, ids, 20, context=16) for name in ("m", "out"))
    assert first.widths == again.widths
    for one, other in zip(first.after, again.after, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other))
