"""The README says what the committed results say, and its quick start runs."""

import re
from pathlib import Path

from benchmarks import summary
from benchmarks.experiments import cascade, order, pruning, slicing
from benchmarks.experiments.slicing import results as slicing_results
from geowidth import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_comes_from_the_committed_results():
    assert summary.table() in README


def test_the_table_of_presets_is_the_committed_one():
    assert (ROOT / "benchmarks" / "presets.md").read_text(encoding="utf-8").strip() in README


def test_the_table_of_experiments_comes_from_the_committed_losses():
    assert order.results(order.committed_studies())["headline.md"].strip() in README


def test_the_table_of_pruning_comes_from_the_committed_losses():
    assert pruning.results(pruning.committed_models())["headline.md"].strip() in README


def test_the_table_of_slicing_comes_from_the_committed_cells():
    assert slicing_results.of_folder(slicing.ROOT)["headline.md"].strip() in README


def test_the_table_of_the_cascade_study_comes_from_the_committed_record():
    assert cascade.table(cascade.committed()).strip() in README


def test_pictures_and_files_are_there():
    names = re.findall(r"\]\(((?!http)[^)#]+)\)", README)
    assert names
    assert all((ROOT / name).exists() for name in names)


def test_commands_exist():
    named = set(re.findall(r"^    geowidth ([a-z]+)", README, re.MULTILINE))
    assert named and named <= set(cli.COMMANDS)


def test_the_quick_start_runs_at_pico_size(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) <= 15 and code.count('"nano"') == 2 and "tokens=512" in code
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code.replace('"nano"', '"pico"').replace("tokens=512", "tokens=64"), "quick start", "exec"), names)
    printed = capsys.readouterr().out
    assert len(names["schedule"].widths) == 4 and str(names["schedule"].widths) in printed
    assert names["record"]["sentence"] in printed
    assert (tmp_path / "runs/q/work.json").is_file()
