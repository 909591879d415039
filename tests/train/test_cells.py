"""The cells of a comparison: what a folder has, lacks and has begun, and how it is finished."""

import shutil
from dataclasses import replace

import pytest

from geowidth import cli, records
from geowidth.chain import planned, resolve
from geowidth.errors import UserError
from geowidth.models.config import training_flops
from geowidth.models.presets import NANO
from geowidth.plan.sweep import plan_sweep
from geowidth.train import checkpoint, compare_folders, train
from geowidth.train.cells import cells_in

ARMS = {"uniform": (24, 24), "cosine": (36, 12)}


def nothing(*_):
    """Watch a training without a word."""


def stop():
    """Stop after the first step."""
    return True


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A run folder of two arms and three seeds, all finished."""
    from tiny_preset import TINY

    folder = tmp_path_factory.mktemp("whole") / "run"
    for arm, widths in ARMS.items():
        for seed in (0, 1, 2):
            train(TINY, widths, seed, folder / "arms" / arm / f"seed-{seed}", arm=arm, corpus=text, watch=nothing)
    settings = {"arms": [*ARMS, "geometry"], "seeds": [0, 1, 2]}
    records.write_json(folder / "settings.json", {"kind": "geowidth.run", "schema": 1, "settings": settings})
    return folder


@pytest.fixture
def folder(whole, text, tmp_path):
    """The same with one cell missing, one begun, and an arm that nobody began."""
    from tiny_preset import TINY

    shutil.copytree(whole, tmp_path / "run")
    arms = tmp_path / "run" / "arms"
    shutil.rmtree(arms / "cosine" / "seed-1")
    shutil.rmtree(arms / "cosine" / "seed-2")
    with pytest.raises(KeyboardInterrupt):
        place = arms / "cosine" / "seed-2"
        train(TINY, ARMS["cosine"], 2, place, arm="cosine", corpus=text, watch=nothing, stop=stop)
    return tmp_path / "run"


def test_cells_of_a_run_folder(folder):
    cells = cells_in([folder])
    states = {(cell.arm, cell.seed): cell.state for cell in cells}
    assert len(states) == 9
    assert {states[arm, 0] for arm in ARMS} == {"finished"}
    assert states["cosine", 1] == "missing" and states["cosine", 2] == "at step 1 of 12"
    assert {states["geometry", seed] for seed in (0, 1, 2)} == {"missing"}
    missing = next(cell for cell in cells if (cell.arm, cell.seed) == ("cosine", 1))
    assert missing.model.widths == ARMS["cosine"] and missing.tokens == 12 * 4 * 16 and missing.left == 1
    assert missing.flops == training_flops(missing.model, missing.tokens)


def test_finish_trains_what_is_missing_to_the_same_table(folder, whole, capsys):
    shutil.rmtree(folder / "arms" / "uniform" / "seed-0")
    (folder / "settings.json").unlink()  # nobody asks for the arm that was never begun
    assert cli.main(["compare", str(folder), "--finish", "--on", "mine"]) == 2
    assert "on is 'mine'; allowed" in capsys.readouterr().err
    assert cli.main(["compare", str(folder), "--finish", "--processes", "1"]) == 0
    found, wanted = (compare_folders(place)["arms"] for place in (folder, whole))
    assert [arm["losses"] for arm in found] == [arm["losses"] for arm in wanted]


def test_an_arm_never_begun_cannot_be_finished(folder, capsys):
    assert cli.main(["compare", str(folder), "--finish"]) == 2
    assert "arm geometry was never begun, so its widths are not known" in capsys.readouterr().err


def test_dry_run_of_compare(folder, capsys):
    before = sorted(folder.rglob("*"))
    assert cli.main(["compare", str(folder), "--dry-run", "--effect", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cells:    9 (3 arms, 3 seeds): 4 finished, 1 begun, 4 missing"
    assert lines[2] == "          cosine: seed 0 finished, seed 1 missing, seed 2 at step 1 of 12"
    assert "as its 4 finished cells took" in lines[5]
    assert "nano demo" in lines[6] and "0.5 takes 2 seeds" in lines[7]
    assert cli.main(["compare", str(folder), "--dry-run", "--sd", "0.5"]) == 0
    assert "0.5 nats per byte (as stated)" in capsys.readouterr().out
    assert sorted(folder.rglob("*")) == before


def test_the_plan_counts_what_is_left(folder):
    cells = cells_in([folder])
    finished = [cell.result for cell in cells if cell.result]
    rate = sum(result["seconds"] for result in finished) / sum(result["flops"] for result in finished)
    left = sum(cell.left * cell.flops for cell in cells)
    plan = plan_sweep(cells, 2, probe=pytest.fail)
    assert plan.flops_left == left and plan.seconds == pytest.approx(left * rate)
    assert plan.wall == max(plan.seconds / 2, plan.longest) and plan.longest == pytest.approx(rate * cells[0].flops)
    assert plan_sweep([cell for cell in cells if cell.result], 2, probe=pytest.fail).seconds == 0


def test_without_a_finished_cell_a_moment_is_timed(folder):
    cells = [replace(cell, result=None, step=0) for cell in cells_in([folder])]
    plan = plan_sweep(cells, 1, probe=lambda request: {"step": 0.5, "window": 0.25})
    assert plan.longest == pytest.approx(12 * 4 * 0.5 + 3 * 8 * 0.25) and plan.source == "steps were timed here"
    assert plan.seconds == pytest.approx(len(cells) * plan.longest)


def test_a_large_model_is_not_run_to_be_timed(folder):
    model = replace(NANO.model, dimension=4096, layers=100, widths=(16384,) * 100)
    first = cells_in([folder])[0]
    large = replace(first, result=None, model=model, training=replace(first.training, steps=10**4))
    plan = plan_sweep([large], 1, probe=pytest.fail)
    words = plan.lines(None)[3]
    assert "of one H100 at 40%, at least " in words and "products of its matrices were timed here" in words


def test_dry_run_of_run(tiny, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("geowidth.plan.training.run_probe", lambda request: {"step": 1.0, "window": 0.0})
    out = tmp_path / "run"
    words = ["run", "--preset", "tiny", "--corpus", str(text), "--out", str(out), "--dry-run", "--processes", "2"]
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cells:    4 (2 arms, 2 seeds): 0 finished, 0 begun, 4 missing"
    assert "about 1 min 36 s (2 side by side, 48 s a cell, steps were timed here)" in lines[4]
    assert not out.exists()
    chain = resolve("tiny", corpus=str(text))
    records.write_json(out / "settings.json", chain.to_json())
    assert len(planned(chain, out)) == 4
    assert cli.main([*words, "--steps", "3"]) == 2
    assert "holds a run with steps 12, not 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "x", "--sd", "1"], "--sd came without --dry-run"),
        (["compare", "x", "--processes", "1"], "--processes came without --dry-run or --finish"),
        (["compare", "x", "--on", "local"], "--on came without --dry-run or --finish"),
        (["run", "--effect", "1"], "--effect came without --dry-run"),
        (["compare", "x", "--dry-run"], "folder x does not exist"),
    ],
)
def test_options_without_use_are_refused(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert said in capsys.readouterr().err


def test_folders_that_are_none(tmp_path, folder):
    with pytest.raises(UserError, match="neither a run folder"):
        cells_in([tmp_path])
    records.write_json(tmp_path / "settings.json", records.read_json(folder / "settings.json"))
    with pytest.raises(UserError, match="nothing is begun in"):
        cells_in([tmp_path])
    place = folder / "arms" / "cosine" / "seed-2"
    records.write_json(place / "config.json", {"kind": "geowidth.training", "schema": 1})
    with pytest.raises(UserError, match=r"config.json is damaged: arm is None, not a text"):
        cells_in([place])


def test_single_training_folders(folder):
    cells = cells_in([folder / "arms" / "cosine" / "seed-2", folder / "arms" / "uniform" / "seed-2"])
    assert [(cell.arm, cell.seed, cell.step) for cell in cells] == [("cosine", 2, 1), ("uniform", 2, 0)]
    assert cells[1].result["seed"] == 2 and checkpoint.read_result(cells[0].folder) is None
