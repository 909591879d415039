"""Models sliced block by block: the same tensors as in memory, one block's weights at a time, and work that goes on."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from slicing_models import made, output, text_of

from geowidth.errors import UserError
from geowidth.measure.opening import open_model
from geowidth.slicing import ffns_of, kept_neurons, neuron_scores, slice_in_place
from geowidth.slicing.streaming import StreamedModel, slice_streaming

TEXT = text_of(windows=6)
NAMES = ("llama", "llama with biases", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "granite", "phi3")


def saved(name, folder, dtype=torch.float32, shard="10GB"):
    made(name, dtype).save_pretrained(folder, max_shard_size=shard)
    return folder


def tensors_of(folder):
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def in_memory(folder, widths, text, **options):
    """The same by the route that holds all: (model, neurons kept, scores)."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ffns = ffns_of(model)
    scores = neuron_scores(ffns, TEXT, batch=len(TEXT.tokens))
    kept = kept_neurons(scores, widths)
    slice_in_place(ffns, kept, text, **options)
    return model, kept, scores


@pytest.mark.parametrize("text", (None, TEXT), ids=("cut", "corrected"))
@pytest.mark.parametrize("name", NAMES)
def test_streamed_tensors_are_those_of_the_model_in_memory(name, text, tmp_path):
    source = saved(name, tmp_path / "whole", shard="8KB")
    model, kept, scores = in_memory(source, (18, 21), text)
    streamed = StreamedModel(source)
    for one, two in zip(streamed.scores(TEXT), scores, strict=True):
        torch.testing.assert_close(one, two)
    report = slice_streaming(streamed, kept, tmp_path / "out", text)
    found, right = tensors_of(tmp_path / "out"), model.state_dict()
    assert set(found) <= set(right) and set(right) - set(found) <= {"lm_head.weight"}
    for tensor_name, tensor in found.items():
        torch.testing.assert_close(tensor, right[tensor_name], rtol=1e-5, atol=1e-6, msg=tensor_name)
    assert [(layer.width, layer.kept) for layer in report.layers] == [(24, 18), (24, 21)]
    assert (report.layers[0].unexplained is None) == (text is None)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(found) and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("widths", ((18, 18), (18, 24), (24, 24)))
def test_the_result_loads_and_computes_what_it_should(widths, tmp_path):
    source = saved("llama", tmp_path / "whole")
    model, kept, _ = in_memory(source, widths, TEXT)
    slice_streaming(StreamedModel(source), kept, tmp_path / "out", TEXT)
    remote = len(set(widths)) > 1
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=remote).eval()
    assert ffns_of(loaded).widths == widths
    torch.testing.assert_close(output(loaded, TEXT.tokens), output(model, TEXT.tokens), rtol=1e-4, atol=1e-4)


def test_files_keep_their_dtype(tmp_path):
    source = saved("llama", tmp_path / "whole", torch.bfloat16)
    kept = [torch.arange(20), torch.arange(24)]
    slice_streaming(StreamedModel(source), kept, tmp_path / "out", TEXT)
    before, after = tensors_of(source), tensors_of(tmp_path / "out")
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}


def test_one_block_is_in_memory_at_a_time(tmp_path):
    streamed = StreamedModel(saved("llama", tmp_path / "whole"))
    seen, places = [], []

    def there(module, _):
        places.append(module.up_proj.weight.data_ptr())
        seen.append([any(not p.is_meta for p in block.parameters()) for block in streamed.blocks])

    for block in streamed.blocks:
        block.mlp.register_forward_pre_hook(there)
    scores = streamed.scores(TEXT)
    slice_streaming(streamed, kept_neurons(scores, (18, 18)), tmp_path / "out", TEXT)
    assert seen == 2 * [[True, False], [False, True]]
    assert places[0] == places[1] and places[2] == places[3], "each block in the room of the last one"
    assert all(parameter.is_meta for parameter in streamed.model.parameters())


@pytest.mark.parametrize("where", (0, 1))
def test_a_stopped_work_goes_on(where, tmp_path, monkeypatch):
    source, kept = saved("llama", tmp_path / "whole"), [torch.arange(18), torch.arange(20)]
    slice_streaming(StreamedModel(source), kept, tmp_path / "at once", TEXT)
    streamed = StreamedModel(source)
    free = StreamedModel.free

    def stopped(self, layer, shards=None):
        free(self, layer, shards)
        if layer == where:
            raise KeyboardInterrupt

    monkeypatch.setattr(StreamedModel, "free", stopped)
    with pytest.raises(KeyboardInterrupt):
        slice_streaming(streamed, kept, tmp_path / "out", TEXT)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(StreamedModel, "free", free)
    written = []
    monkeypatch.setattr("geowidth.slicing.shards.Shards.write", writing(written))
    report = slice_streaming(StreamedModel(source), kept, tmp_path / "out", TEXT)
    assert written == list(range(where + 1, 2)) and [layer.kept for layer in report.layers] == [18, 20]
    for name, tensor in tensors_of(tmp_path / "at once").items():
        assert torch.equal(tensor, tensors_of(tmp_path / "out")[name]), name


def writing(written):
    from geowidth.slicing.shards import Shards

    usual = Shards.write

    def write(self, layer, tensors):
        written.append(layer)
        usual(self, layer, tensors)

    return write


def test_another_request_begins_at_the_beginning(tmp_path, monkeypatch):
    source = saved("llama", tmp_path / "whole")
    left = tmp_path / ".out.slicing"
    left.mkdir()
    (left / "model-00001-of-00003.safetensors").write_bytes(b"of something else")
    (left / "request.json").write_text("{}")
    slice_streaming(StreamedModel(source), [torch.arange(18), torch.arange(18)], tmp_path / "out")
    assert not (tmp_path / "out" / "request.json").exists() and not left.exists()
    assert len(tensors_of(tmp_path / "out")) == len(tensors_of(source))


def test_the_files_of_a_converted_model_stream(tmp_path):
    """With a tokenizer beside them, text is drawn without weights."""
    source = saved("llama", tmp_path / "whole")
    streamed = StreamedModel(source)
    with pytest.raises(UserError, match=r"holds no tokenizer\.json"):
        _ = streamed.opened
    with pytest.raises(UserError, match=r"holds no tokenizer\.json"):
        open_model(source)


@pytest.mark.parametrize(
    ("kept", "options", "words"),
    (
        ((18, 0), {}, "layer 1 would keep no neuron"),
        ((18, 25), {}, "neurons to keep of layer 1 are no ascending"),
        ((18,), {}, "neurons to keep came for 1 layers"),
        ((18, 18), {"calibration": text_of(windows=2)}, "2 calibration windows of 12 tokens leave 12 to fit 18"),
        ((18, 18), {"ridge": -2}, "ridge is -2"),
    ),
)
def test_bad_input_is_one_line_before_work(kept, options, words, tmp_path):
    streamed = StreamedModel(saved("llama", tmp_path / "whole"))
    with pytest.raises(UserError, match=words):
        slice_streaming(streamed, [torch.arange(width) for width in kept], tmp_path / "out", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole"]


def test_other_models_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="model_type of a model that is streamed is 'gpt2'; allowed: llama, mistral"):
        StreamedModel(saved("gpt2", tmp_path / "gpt2"))
    source = saved("llama", tmp_path / "llama")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(UserError, match="states a quantization_config"):
        StreamedModel(source)


def test_a_tensor_that_is_missing_is_named(tmp_path):
    from safetensors.torch import save_file

    source = saved("llama", tmp_path / "whole")
    tensors = load_file(source / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"tensor model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        StreamedModel(source)


def test_rules_that_need_gradients_are_refused(tmp_path):
    streamed = StreamedModel(saved("llama", tmp_path / "whole"))
    with pytest.raises(
        UserError, match="neuron rule taylor needs gradients of the whole model in memory; streamed: act"
    ):
        streamed.scores(TEXT, "taylor")
    magnitude = streamed.scores(None, "magnitude")
    right = neuron_scores(ffns_of(made("llama", torch.float32)), None, "magnitude")
    for one, two in zip(magnitude, right, strict=True):
        torch.testing.assert_close(one, two)


def test_too_little_memory_is_said_before_work(tmp_path, monkeypatch):
    streamed = StreamedModel(saved("llama", tmp_path / "whole"))
    monkeypatch.setattr("geowidth.memory.available", lambda: 1000)
    with pytest.raises(UserError, match="slicing block by block takes"):
        slice_streaming(streamed, [torch.arange(18), torch.arange(18)], tmp_path / "out", TEXT)
    assert not (tmp_path / ".out.slicing").exists()
