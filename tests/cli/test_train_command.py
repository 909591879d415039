"""`geowidth train` as a user meets it."""

import pytest

from geowidth import cli, records
from geowidth.train import checkpoint


@pytest.fixture
def schedule(tmp_path):
    path = tmp_path / "schedule.json"
    record = {"kind": "geowidth.schedule", "schema": 1, "name": "cosine", "widths": [36, 12], "budget": {}}
    records.write_json(path, record)
    return path


def test_train_resume_and_finished(tiny, text, schedule, tmp_path, capsys):
    arguments = ["train", "--preset", "tiny", "--schedule", str(schedule), "--steps", "9", "--seed", "3"]
    arguments += ["--out", str(tmp_path / "run"), "--corpus", str(text)]
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert "run is finished: validation loss" in captured.out and "bits per byte" in captured.out
    assert "train cosine seed 3: 9/9 steps" in captured.err and "tokens/s" in captured.err
    result = checkpoint.read_result(tmp_path / "run")
    assert (result["arm"], result["seed"], result["steps"], result["widths"]) == ("cosine", 3, 9, [36, 12])
    assert records.read_json(tmp_path / "run" / "config.json")["kind"] == "geowidth.training"
    assert cli.main(arguments) == 0
    assert "was finished before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "nono"], "preset is 'nono'; allowed: "),
        (["--schedule", "nothing.json"], "cannot read nothing.json"),
        (["--steps", "0"], "steps is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--learning-rate", "nan"], "--learning-rate is 'nan'"),
        (["--corpus", "nothing.txt"], "'nothing.txt' does not exist"),
        (["--batch", "0"], "batch is 0"),
        (["--threads", "0"], "threads is 0"),
        (["--momentum", "0.9"], "--momentum is 0.9, but --optimizer is adamw; give --optimizer muon or sgd too"),
        (["--exit-period", "3", "--exit-loss", "1"], "--exit-period is 3, but --exit-curriculum is none; give"),
        (["--threads", "100000"], "threads is 100000; allowed: whole numbers from 1 to 1024"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tiny, tmp_path, capsys, arguments, words):
    assert cli.main(["train", "--out", str(tmp_path / "run"), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_schedules_that_do_not_fit(tiny, schedule, tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")]
    assert cli.main(["train", "--schedule", str(schedule), *out]) == 2
    assert "2 widths came; preset 'nano' has" in capsys.readouterr().err
    for value in (
        {"kind": "geowidth.work", "schema": 1},
        {"kind": "geowidth.schedule", "schema": 1, "name": "x", "widths": 3},
    ):
        records.write_json(schedule, value)
        assert cli.main(["train", "--preset", "tiny", "--schedule", str(schedule), *out]) == 2
    assert "schedule.json: not a schedule: widths is 3" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--steps", "1e3"], ["--seed", "x"], ["--stepps", "3"], []])
def test_wrong_words_are_code_2(tmp_path, arguments, capsys):
    assert cli.main(["train", *(["--out", str(tmp_path / "run")] if arguments else []), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "run").exists()


def test_the_options_of_training_reach_the_result(tiny, text, tmp_path, capsys):
    words = "--steps 6 --optimizer muon --decay wsd --decay-share 0.5 --warmup 0.2 --weight-decay 0 --clip 2 --keep 3"
    words += " --dtype bfloat16 --recompute block --evaluations 2 --document-mask --peak-flops 1e9 --tensorboard"
    words += " --save-seconds 0 --device auto --microbatch 3 --threads 1"
    arguments = ["train", "--preset", "tiny", "--out", str(tmp_path / "run"), "--corpus", str(text), *words.split()]
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert "tokens/s, MFU " in captured.out and "tokens/s, MFU " in captured.err
    result = checkpoint.read_result(tmp_path / "run")
    wanted = {
        "steps": 6, "optimizer": "muon", "decay": "wsd", "decay_share": 0.5, "warmup": 0.2, "weight_decay": 0.0,
        "clip": 2.0, "keep": 3, "dtype": "bfloat16", "recompute": "block", "evaluations": 2, "document_mask": True,
        "compile": False, "microbatch": 3,
    }  # fmt: skip
    assert {name: result["training"][name] for name in wanted} == wanted
    assert result["unit"] == "nats per byte" and result["tokens_per_second"] > 0 and result["mfu"] > 0
    assert result["environment"]["device"] in ("cpu", "cuda")
    assert list((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "tpu"], "device is 'tpu'; allowed: cpu, cuda, cuda:N, auto"),
        (["--device", "cuda:99"], "CUDA devices; use cpu"),
        (["--dtype", "float16"], "--dtype is 'float16'; allowed: float32, bfloat16"),
        (["--optimizer", "lion"], "--optimizer is 'lion'; allowed: adamw, muon, sgd"),
        (["--decay", "linear"], "--decay is 'linear'; allowed: cosine, wsd"),
        (["--decay", "wsd", "--decay-share", "0.95", "--warmup", "0.1"], "exceed all steps"),
        (["--recompute", "all"], "--recompute is 'all'; allowed: none, ffn, block"),
        (["--peak-flops", "0"], "--peak-flops is 0; allowed: finite numbers above 0"),
        (["--save-seconds", "-1"], "--save-seconds is -1; allowed: numbers from 0 up"),
        (["--compile=no"], "--compile"),
    ],
)
def test_wrong_options_of_training_are_one_line_and_code_2(tiny, text, tmp_path, capsys, arguments, words):
    assert (
        cli.main(["train", "--preset", "tiny", "--corpus", str(text), "--out", str(tmp_path / "run"), *arguments]) == 2
    )
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()
