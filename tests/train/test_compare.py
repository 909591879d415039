"""`geowidth compare`: what may be compared is, and what may not is refused in one sentence."""

import pytest

from geowidth import cli, records
from geowidth.errors import UserError
from geowidth.report import table
from geowidth.train import checkpoint, compare_folders, train

ARMS = {"uniform": (24, 24), "cosine": (36, 12), "reversed": (12, 36)}


@pytest.fixture
def folder(tiny, text, tmp_path):
    for arm, widths in ARMS.items():
        for seed in (0, 1):
            out = tmp_path / "run" / "arms" / arm / f"seed-{seed}"
            train("tiny", widths, seed, out, arm=arm, corpus=text, watch=lambda *_: None)
    return tmp_path / "run"


def change(folder, **fields):
    path = folder / "result.json"
    records.write_json(path, {**records.read_json(path), **fields})


def test_run_folder(folder, capsys):
    assert cli.main(["compare", str(folder)]) == 0
    out = capsys.readouterr().out
    record = records.read_json(folder / "comparison.json", "geowidth.comparison", 1)
    assert [arm["arm"] for arm in record["arms"]] == ["uniform", "cosine", "reversed"]
    for arm in record["arms"]:
        assert arm["widths"] == list(ARMS[arm["arm"]])
        assert arm["parameters"] == record["arms"][0]["parameters"] and arm["tokens"] == 12 * 4 * 16
        assert arm["flops"] > 0 and arm["seconds"] > 0
        results = [checkpoint.read_result(folder / "arms" / arm["arm"] / f"seed-{s}") for s in (0, 1)]
        assert list(arm["losses"].values()) == [r["loss"] for r in results]
    assert record["settings"]["unit"] == "nats per byte of the validation set"
    assert record["settings"]["corpus"]["digest"] == results[0]["corpus"]["digest"]
    assert table(record) in out and str(folder / "comparison.json") in out


def test_single_folders_and_another_baseline(folder, tmp_path, capsys):
    dirs = [str(folder / "arms" / arm / f"seed-{seed}") for arm in ("cosine", "reversed") for seed in (0, 1)]
    out = tmp_path / "c.json"
    assert cli.main(["compare", *dirs, "--baseline", "reversed", "--out", str(out), "--effect", "0.5"]) == 0
    record = records.read_json(out)
    assert record["baseline"] == "reversed" == record["arms"][0]["arm"]
    assert record["arms"][1]["difference"]["seeds_for_power"]["effect"] == 0.5


def test_a_smaller_arm_is_named(folder):
    assert "fewer parameters" not in compare_folders(folder)["sentence"]
    parameters = checkpoint.read_result(folder / "arms" / "cosine" / "seed-0")["parameters"]
    for seed in (0, 1):
        change(folder / "arms" / "cosine" / f"seed-{seed}", parameters=parameters * 3 // 4)
    assert compare_folders(folder)["sentence"].endswith(
        "cosine has 25.0 % fewer parameters than uniform: unequal budgets."
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tokens": 1}, "not comparable: tokens is 1 in .*seed-1 but 768"),
        ({"corpus": {"digest": "0"}}, "not comparable: corpus digest is 0"),
        ({"parameters": 10**9}, "1,000,000,000 parameters, above the budget"),
        ({"seed": 7}, r"arm cosine has seeds \[0, 7\], uniform has \[0, 1\]"),
        ({"seed": 0}, "both arm cosine seed 0"),
        ({"arm": "uniform", "seed": 9}, r"has seeds|different widths"),
        ({"widths": [36, 11]}, "arm cosine has different widths"),
    ],
)
def test_unequal_terms_are_refused(folder, fields, words):
    change(folder / "arms" / "cosine" / "seed-1", **fields)
    with pytest.raises(UserError, match=words) as caught:
        compare_folders(folder)
    assert "\n" not in str(caught.value)


def test_training_and_model_must_agree(folder):
    target = folder / "arms" / "cosine" / "seed-1"
    result = checkpoint.read_result(target)
    change(target, training={**result["training"], "learning_rate": 0.5})
    with pytest.raises(UserError, match="training learning_rate is 0.5"):
        compare_folders(folder)
    change(target, training=result["training"], model={**result["model"], "heads": 4})
    with pytest.raises(UserError, match="model heads is 4"):
        compare_folders(folder)


def test_unfinished_and_missing_folders(folder, tmp_path, capsys):
    (folder / "arms" / "cosine" / "seed-1" / "result.json").unlink()
    assert cli.main(["compare", str(folder)]) == 2
    assert "seed-1 is not finished" in capsys.readouterr().err
    assert cli.main(["compare", str(tmp_path)]) == 2
    assert "neither a run folder" in capsys.readouterr().err
    assert cli.main(["compare", str(folder), "--out", str(tmp_path)]) == 2
    assert "it is a folder" in capsys.readouterr().err
    for bad in (["--confidence", "2"], ["--power", "nan"], ["--baseline", "none"], ["--effect", "0"]):
        dirs = [str(folder / "arms" / arm / "seed-0") for arm in ARMS]
        assert cli.main(["compare", *dirs, "--out", str(tmp_path / "c.json"), *bad]) == 2
        assert bad[0][2:] in capsys.readouterr().err
    assert not (tmp_path / "c.json").exists()


def test_an_arm_alone_is_said_to_be_once(folder, tmp_path, capsys):
    words = ["compare", str(folder / "arms" / "uniform" / "seed-0")]
    assert cli.main([*words, "--out", str(tmp_path / "c.json")]) == 0
    assert capsys.readouterr().out.count("there is nothing to compare") == 1


def test_settings_that_an_older_result_lacks_count_as_defaults(folder):
    target = folder / "arms" / "cosine" / "seed-1"
    result = checkpoint.read_result(target)
    older = {name: value for name, value in result["training"].items() if name not in ("clip", "threads")}
    shape = {name: value for name, value in result["model"].items() if name != "rope_base"}
    change(target, training=older, model=shape)
    assert compare_folders(folder)["baseline"] == "uniform"
    change(target, training=older | {"clip": 2.0})
    with pytest.raises(UserError, match="training clip is 2.0 in .*seed-1 but 1.0"):
        compare_folders(folder)


def test_what_differs_in_machines_and_versions_is_named(folder):
    assert "trained alike" not in compare_folders(folder)["sentence"]
    target = folder / "arms" / "cosine" / "seed-1"
    change(target, environment=checkpoint.read_result(target)["environment"] | {"torch": "1.0", "device": "abacus"})
    sentence = compare_folders(folder)["sentence"]
    assert "Not all were trained alike (torch " in sentence and ", 1.0" in sentence
