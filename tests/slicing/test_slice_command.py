"""`geowidth slice` as a user meets it: every kind of model, every target, refusals; and what the result is good for."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file
from sliced_folders import ENCODERS, exported_folder, library_folder, own_folder

from geowidth import cli, records
from geowidth.allocate import allocate
from geowidth.artifacts.cost import TableCost
from geowidth.cascade.held_out import HeldOut
from geowidth.cli import slice as slice_command
from geowidth.errors import UserError
from geowidth.exchange.checkpoint import read_checkpoint, write_files
from geowidth.exchange.formats import FORMATS
from geowidth.exchange.gguf_read import read_gguf
from geowidth.measure.opening import open_model
from geowidth.models import load_model
from geowidth.slicing import ffns_of, judge, pipeline
from geowidth.text.tokenizer import byte_vocabulary

FEW = ("--windows", "3", "--calibration-windows", "10", "--context", "16")


@pytest.fixture
def sliced(text, capsys):
    torch.set_num_threads(1)  # put back by a fixture of all tests

    def run(model, out, *more, few=FEW):
        code = cli.main(["slice", str(model), "--out", str(out), "--corpus", str(text), *few, *map(str, more)])
        return code, capsys.readouterr()

    return run


def without_use(*neurons):
    """A change of a model after which those neurons of every layer have no say: their columns are zero. Where neurons
    have biases all fire, so that no others are silent."""

    def change(model):
        with torch.no_grad():
            for ffn in ffns_of(model):
                for weight in ffn.rows:
                    if weight.parameter.ndim == 1:
                        weight.put(weight.parameter + 20)
                columns = ffn.columns().clone()
                columns[:, list(neurons)] = 0
                ffn.put_columns(columns)

    return change


@pytest.mark.parametrize("kind", ["ours", "llama", "gemma3_text", "phi3", "gpt2", "gpt_neox", "opt", "bert"])
def test_useless_neurons_go_first_and_cost_nothing(kind, sliced, tmp_path):
    """Half of the neurons add nothing: half is kept, the loss (or the last states) stays, and they are not among it."""
    change, folder = without_use(*range(0, 24, 2)), tmp_path / "whole"
    source = own_folder(folder, change=change, widths=(24, 24, 24)) if kind == "ours" else library_folder(
        folder, kind, change=change
    )  # fmt: skip
    code, said = sliced(source, tmp_path / "out", "--keep", 0.5)
    assert code == 0, said.err
    record = records.read_json(tmp_path / "out" / "slice.json", "geowidth.slice", 1)
    odd = " ".join(str(i) for i in range(1, 24, 2))
    assert record["kept"] == [odd] * 3 and record["widths"] == [12] * 3 and record["widths_before"] == [24] * 3
    if kind in ENCODERS:
        assert record["states"]["mean"] < 1e-9 and "last states on 3 windows" in said.out
    else:
        assert abs(record["difference"]["mean"]) < 1e-5 and "(nats per token, paired)" in said.out
    pair = record["parameters"]
    assert f"{pair['sliced']:,} of {pair['whole']:,}" in said.out and pair["sliced"] < pair["whole"]
    assert pair["whole"] - pair["sliced"] == record["ffn_parameters"]["whole"] - record["ffn_parameters"]["sliced"]
    assert record["time"]["ratio"] > 0 and record["bytes"]["sliced"] < record["bytes"]["whole"]
    assert not (tmp_path / "out.unfinished").exists()


@pytest.mark.parametrize("kind", ["ours", "llama", "gpt2", "bert"])
def test_the_record_is_of_what_was_written(kind, sliced, tmp_path):
    source = own_folder(tmp_path / "whole") if kind == "ours" else library_folder(tmp_path / "whole", kind)
    code, said = sliced(source, tmp_path / "out", "--keep", 0.6, "--by", "cosine", "--neurons", "magnitude")
    assert code == 0, said.err
    record = records.read_json(tmp_path / "out" / "slice.json")
    assert len(set(record["widths"])) == 3 and f"widths: {' '.join(map(str, record['widths']))}" in said.out
    model = open_model(tmp_path / "out", causal=kind != "bert").model
    assert sum(p.numel() for p in model.parameters()) == record["parameters"]["sliced"]
    wide = [max(record["widths"])] * 3 if kind in ("gpt2", "bert") else record["widths"]
    assert list(ffns_of(model).widths) == wide
    assert bool(record["notes"]) == (kind != "ours")
    assert all(str(tmp_path / "out") in note or "zero padding" in note for note in record["notes"])
    layers = record["correction"]["layers"]
    assert [layer["kept"] for layer in layers] == record["widths"]


def test_targets(sliced, tmp_path):
    """Each target is kept to: parameters by count, milliseconds by the table, a schedule to the letter."""
    source = own_folder(tmp_path / "whole", widths=(24, 24, 24))
    whole = load_model(source).parameter_count()
    code, said = sliced(source, tmp_path / "a", "--parameters", whole - 700)
    assert code == 0, said.err
    assert whole - 700 - 3 * 48 < load_model(tmp_path / "a").parameter_count() <= whole - 700
    table = TableCost([8, 16, 24], [1.0, 2.0, 3.0], {"model_dimension": 16, "projections": 3})
    records.write_json(tmp_path / "cost.json", table.to_json())
    code, said = sliced(source, tmp_path / "b", "--latency", 6, "--cost", tmp_path / "cost.json", "--by", "linear")
    assert code == 0 and table.total(load_model(tmp_path / "b").config.widths) <= 6, said.err
    schedule = allocate("cosine", layers=3, base_width=12, model_dimension=16)
    schedule.write(tmp_path / "schedule.json")
    code, said = sliced(source, tmp_path / "c", "--schedule", tmp_path / "schedule.json")
    assert code == 0 and load_model(tmp_path / "c").config.widths == schedule.widths, said.err
    code, said = sliced(source, tmp_path / "d", "--keep", 0.7, "--by", "linear", "--multiple", 4,
                        "--max-distinct-widths", 2)  # fmt: skip
    widths = load_model(tmp_path / "d").config.widths
    assert code == 0 and all(w % 4 == 0 for w in widths) and len(set(widths)) <= 2, said.err


def test_parameters_of_a_model_that_can_only_be_padded(sliced, tmp_path):
    source = library_folder(tmp_path / "whole", "gpt2")
    whole = sum(p.numel() for p in open_model(source, causal=True).model.parameters())
    for rule in ("cosine", "sensitivity"):
        code, said = sliced(source, tmp_path / "out", "--parameters", whole - 700, "--by", rule)
        assert code == 2 and "padded to the widest; give --max-distinct-widths 1, or --keep" in said.err, said.err
    code, said = sliced(source, tmp_path / "out", "--parameters", whole - 700, "--max-distinct-widths", 1)
    assert code == 0, said.err
    assert records.read_json(tmp_path / "out" / "slice.json")["parameters"]["sliced"] <= whole - 700
    code, said = sliced(source, tmp_path / "wide", "--keep", 0.6, "--by", "cosine")
    assert code == 0, said.err
    record = records.read_json(tmp_path / "wide" / "slice.json")
    pair, inner = record["parameters"], record["ffn_parameters"]
    assert pair["whole"] - pair["sliced"] == inner["whole"] - inner["sliced"]


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ([2.0, 1.2, 1.1, 1.0, 1.3], ": 1.20 (1.10 to 1.30) times as fast (median"),
        ([0.7, 0.9, 1.0, 1.1, 1.3], ": 1.00 (0.90 to 1.10) times as fast, so no difference can be told (median"),
    ],
)
def test_the_speed_has_the_spread_over_rounds(ratios, words, monkeypatch):
    """Load that both models have in a round is not in the ratio."""
    whole, narrow = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    load, first = [1.0, 3.0, 1.0, 9.0, 2.0], [100.0]
    left = {whole: first + [r * s for r, s in zip(ratios, load, strict=True)], narrow: first + load}
    monkeypatch.setattr(judge, "_pass_seconds", lambda model, _: left[model].pop(0))
    ids = torch.zeros(1, 4, dtype=torch.int64)
    time = judge.timed(whole, narrow, HeldOut(ids, ids, {}), rounds=5)
    assert words in slice_command._speed(time) and time["sliced"]["median"] == 2.0, time


def test_biases_where_a_layer_keeps_all_its_neurons(sliced, tmp_path):
    source = library_folder(tmp_path / "whole", "llama")
    code, said = sliced(source, tmp_path / "out", "--keep", 0.6, "--by", "cosine", "--bias")
    assert code == 0, said.err
    assert records.read_json(tmp_path / "out" / "slice.json")["widths"][0] == 24
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert not tensors["model.layers.0.mlp.down_proj.bias"].any() and tensors["model.layers.1.mlp.down_proj.bias"].any()


def test_everything_kept_is_the_model_itself(sliced, tmp_path):
    source = library_folder(tmp_path / "whole", "llama", torch.bfloat16)
    code, said = sliced(source, tmp_path / "out", "--keep", 1)
    assert code == 0, said.err
    before, after = (load_file(path / "model.safetensors") for path in (source, tmp_path / "out"))
    assert set(before) == set(after) and all(torch.equal(before[name], after[name]) for name in before)
    assert records.read_json(tmp_path / "out" / "slice.json")["difference"] == {"mean": 0, "standard_error": 0}


def test_a_correction_that_can_be_exact_is(sliced, tmp_path):
    """Twelve quiet neurons do what twelve loud ones do: the loud ones stay, and can take over all the others did."""

    def twins(model):
        with torch.no_grad():
            for ffn in ffns_of(model):
                for weight in ffn.rows:
                    weight.parameter[12:] = weight.parameter[:12]
                columns = ffn.columns().clone()
                columns[:, :12] *= 20
                ffn.put_columns(columns)

    source = own_folder(tmp_path / "whole", change=twins, widths=(24, 24, 24))
    found = {}
    for name, more in (("exact", ["--ridge", "1e-9"]), ("chosen", []), ("none", ["--no-correction"])):
        code, said = sliced(source, tmp_path / name, "--keep", 0.5, *more)
        assert code == 0, said.err
        record = records.read_json(tmp_path / name / "slice.json")
        assert record["kept"] == ["0-11"] * 3
        found[name] = abs(record["difference"]["mean"])
    assert found["exact"] < 1e-5 and found["none"] > 50 * found["exact"] and found["chosen"] < found["none"]


def test_a_sliced_model_is_exported_in_every_format(sliced, tmp_path):
    """What is read back of every export is what was sliced."""
    source = library_folder(tmp_path / "whole", "llama", num_key_value_heads=1, vocab_size=256)
    write_files(source, byte_vocabulary().files())
    code, said = sliced(source, tmp_path / "out", "--keep", 0.6, "--by", "cosine")
    assert code == 0, said.err
    widths = records.read_json(tmp_path / "out" / "slice.json")["widths"]
    wanted = read_checkpoint(tmp_path / "out")
    for form in FORMATS:
        assert cli.main(["export", str(tmp_path / "out"), "--format", form, "--out", str(tmp_path / form)]) == 0, form
    assert read_checkpoint(tmp_path / "hf").shape.widths == wanted.shape.widths == tuple(widths)
    for name, tensor in read_gguf(tmp_path / "gguf" / "model.gguf").tensors.items():
        assert torch.equal(tensor, wanted.tensors[name]), name
    ids = torch.tensor([[1, 5, 3, 9, 2, 2, 11, 7]])
    with torch.no_grad():
        logits = open_model(tmp_path / "out", causal=True).model(ids)
        for form in ("hf", "hf-padded", "nemotron-nas", "geowidth"):
            again = open_model(tmp_path / form, causal=True).model(ids)
            torch.testing.assert_close(getattr(again, "logits", again), logits, rtol=1e-4, atol=1e-5)


def test_a_sliced_model_is_sliced_again_and_measured(sliced, tmp_path, capsys, text):
    source = exported_folder(tmp_path / "whole")
    assert sliced(source, tmp_path / "a", "--keep", 0.8)[0] == 0
    code, said = sliced(tmp_path / "a", tmp_path / "b", "--keep", 0.5, "--dtype", "bfloat16")
    assert code == 0, said.err
    assert read_checkpoint(tmp_path / "b").dtype == torch.bfloat16
    command = ["measure", str(tmp_path / "b"), "--tokens", "8", "--corpus", str(text), "--context", "16"]
    assert cli.main([*command, "--out", str(tmp_path / "work.json")]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "how narrow is not said; give exactly one of --keep, --parameters, --latency, --schedule"),
        (["--keep", "0.5", "--parameters", "9"], "--keep and --parameters came"),
        (["--keep", "0"], "keep is 0"),
        (["--keep", "1.5"], "keep is 1.5"),
        (["--keep", "nan"], "--keep is 'nan'"),
        (["--keep", "0.01"], "keep more"),
        (["--parameters", "9"], "ask for"),
        (["--latency", "3"], "--latency and --cost go together"),
        (["--latency", "3", "--cost", "none.json"], "none.json"),
        (["--schedule", "none.json"], "none.json"),
        (["--schedule", "none.json", "--by", "cosine"], "--by came with --schedule"),
        (["--schedule", "none.json", "--max-distinct-widths", "2"], "--max-distinct-widths came with --schedule"),
        (["--schedule", "none.json", "--multiple", "1"], "--multiple came with --schedule"),
        (["--keep", "0.5", "--by", "best"], "rule for widths is 'best'"),
        (["--keep", "0.5", "--by", "cosine", "--statistic", "gw"], "--statistic came with rule cosine"),
        (["--keep", "0.5", "--neurons", "best"], "--neurons is 'best'; allowed: activation"),
        (["--keep", "0.5", "--ridge", "-1"], "ridge is -1"),
        (["--keep", "0.5", "--ridge", "1", "--no-correction"], "--ridge came with --no-correction"),
        (["--keep", "0.5", "--bias"], "has no place for a bias"),
        (["--keep", "0.5", "--distil"], "give --heal STEPS too"),
        (["--keep", "0.5", "--heal", "0"], "--heal is 0"),
        (["--keep", "0.5", "--device", "tpu"], "tpu"),
        (["--keep", "0.5", "--context", "9999"], "the model takes at most 32"),
        (["--keep", "0.5", "--windows", "999999", "--calibration-windows", "16"], "999999 windows asked for"),
        (["--keep", "0.5", "--dtype", "int8"], "--dtype is 'int8'"),
    ],
)
def test_bad_input_is_one_line_and_code_2(sliced, tmp_path, arguments, words):
    source = own_folder(tmp_path / "whole")
    code, said = sliced(source, tmp_path / "out", *arguments, few=())
    assert code == 2 and words in said.err and said.err.count("\n") == 1, said.err
    assert said.out == "" and {path.name for path in tmp_path.iterdir()} == {"whole"}


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("ours", ["--keep", "0.5", "--by", "geometry", "--geometry", "flat"], "flat"),
        ("ours", ["--keep", "0.01", "--no-correction"], "keep more"),
        ("ours", ["--keep", "0.5", "--by", "sensitivity:share=2"], "share is 2"),
        ("ours", ["--keep", "0.5", "--by", "combined:windows=99", "--no-correction"], "windows is 99"),
        ("bert", ["--keep", "0.5", "--neurons", "taylor"], "rule taylor needs next-token losses"),
        ("bert", ["--keep", "0.5", "--by", "curves"], "needs next-token losses"),
    ],
)
def test_what_is_wrong_is_told_before_any_work(kind, arguments, words, sliced, tmp_path, monkeypatch):
    source = own_folder(tmp_path / "whole") if kind == "ours" else library_folder(tmp_path / "whole", kind)
    monkeypatch.setattr(pipeline, "stages_of", None)
    code, said = sliced(source, tmp_path / "out", *arguments)
    assert code == 2 and words in said.err, said.err


def test_a_refusal_after_some_work_leaves_nothing_in_the_way(sliced, tmp_path, monkeypatch):
    source = own_folder(tmp_path / "whole")

    def refuse(*_):
        raise UserError("no")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_sliced", refuse)
        assert sliced(source, tmp_path / "out", "--keep", 0.5)[0] == 2
    code, said = sliced(source, tmp_path / "out", "--keep", 0.6)
    assert code == 0, said.err


def test_too_little_text_for_the_correction(sliced, tmp_path):
    source = own_folder(tmp_path / "whole")
    few = ("--windows", "2", "--calibration-windows", "2", "--context", "8")
    code, said = sliced(source, tmp_path / "out", "--keep", 0.8, few=few)
    assert code == 2 and "leave 8 to fit" in said.err and said.err.count("\n") == 1, said.err
    assert not (tmp_path / "out.unfinished").exists()
    assert sliced(source, tmp_path / "out", "--keep", 0.8, "--no-correction", few=few)[0] == 0


def test_models_that_cannot_be_sliced(sliced, tmp_path):
    import transformers

    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=20, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=2, max_position_embeddings=32,
    )  # fmt: skip
    from sliced_folders import word_tokenizer

    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path / "moe")
    word_tokenizer(tmp_path / "moe")
    code, said = sliced(tmp_path / "moe", tmp_path / "out", "--keep", 0.5)
    assert code == 2 and "has experts in place of FFNs" in said.err, said.err
    packed = library_folder(tmp_path / "packed", "llama")
    stated = json.loads((packed / "config.json").read_text()) | {"quantization_config": {"quant_method": "gptq"}}
    (packed / "config.json").write_text(json.dumps(stated))
    code, said = sliced(packed, tmp_path / "out", "--keep", 0.5)
    assert code == 2 and "quantization_config" in said.err, said.err
    narrow = own_folder(tmp_path / "narrow", widths=(24, 0, 24))
    code, said = sliced(narrow, tmp_path / "out", "--keep", 0.5)
    assert code == 2 and "layer 1 has no FFN" in said.err, said.err
    code, said = sliced(tmp_path / "nowhere", tmp_path / "out", "--keep", 0.5)
    assert code == 2 and "does not exist" in said.err or "no folder" in said.err, said.err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    code, said = sliced(narrow, tmp_path / "out", "--keep", 0.5)
    assert code == 2 and "exists already" in said.err, said.err


def test_an_encoder_is_not_healed(sliced, tmp_path):
    source = library_folder(tmp_path / "whole", "bert")
    code, said = sliced(source, tmp_path / "out", "--keep", 0.5, "--heal", 3)
    assert code == 2 and "predicts no next token" in said.err, said.err


def test_help_teaches():
    text = cli.parser_for("slice")[0].format_help()
    assert text.count("geowidth slice ") >= 5 and "geowidth export narrow --format gguf" in text
    for name in ("activation", "fluctuation", "taylor", "minitron", "magnitude", "random", "uniform", "geometry"):
        assert re.search(rf"^  .*\b{name}\b", text, re.MULTILINE), name
