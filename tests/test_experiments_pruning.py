"""The tables of pruning: known answers from made records, runs that are found again, committed tables that repeat."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from benchmarks.experiments import pruning, pruning_runs
from benchmarks.experiments.pruning import Model
from geowidth import cascade, records

VALUE = (4.0, 1.0, 2.0, 3.0)  # what each of four blocks is worth: sets of them lose the sum


def made_record(training, noise=0.0, every=True):
    """A record in which the ledger knows the worth of blocks, and magnitude has it the wrong way round."""
    generator = np.random.default_rng(training)
    full = generator.normal(2, 0.1, 6)
    windows = {"": full.tolist()}
    for k in (1, 2, 3):
        for removed in combinations(range(4), k):
            name = " ".join(map(str, removed))
            windows[name] = (full + sum(VALUE[b] for b in removed) + generator.normal(0, noise, 6)).tolist()

    def ranking(scores, seed=0):
        return {"seed": seed, "scores": list(scores), "order": np.argsort(scores, kind="stable").tolist()}

    chance = [ranking(generator.permutation(4).astype(float), seed) for seed in range(5)]
    own = {"ledger": [ranking(VALUE)], "magnitude": [ranking([-v for v in VALUE])], "random": chance}
    told = {"random": cascade.rank_stability([one["scores"] for one in chance]).to_json() | {"orders": 5}}
    found = {"run": {"blocks": 3, "trained": training}, "layers": 4, "rankings": own, "stability": told}
    found |= {"windows": windows, "importance": {"importance": list(VALUE)}}
    return found | ({"every_set": {n: float(np.mean(v)) for n, v in windows.items() if n}} if every else {})


def rows_of(table, **wanted):
    return [row for row in table if all(row[name] == value for name, value in wanted.items())]


def test_curves_of_known_losses():
    model = Model("mini", tuple(made_record(training) for training in range(3)))
    table = pruning.curves(model)
    assert [row["above"] for row in rows_of(table, rule="ledger")] == pytest.approx([1, 3, 6])
    assert [row["above"] for row in rows_of(table, rule="magnitude")] == pytest.approx([4, 7, 9])
    assert [row["better"] for row in rows_of(table, rule="ledger")] == [0, 0, 0]
    assert [row["better"] for row in rows_of(table, rule="magnitude")] == pytest.approx([3 / 4, 5 / 6, 3 / 4])
    # A random set of k blocks loses k times 10 / 4, which is known where every set is.
    assert [row["from_random"] for row in rows_of(table, rule="ledger")] == pytest.approx([-1.5, -2, -1.5])
    assert all(row["holm_p"] < 0.05 for row in table if row["rule"] != "random")
    assert [row["from_random"] for row in rows_of(table, rule="random")] == [None] * 3
    least, most = model.extremes("random", 1)
    assert 1 - 1e-9 <= least <= most <= 4 + 1e-9
    np.testing.assert_allclose(model.best(2), 3)


def test_windows_are_paired_where_there_is_one_model():
    model = Model("smollm2-stdlib", (made_record(0, noise=0.2, every=False),))
    record = model.records[0]
    row = rows_of(pruning.curves(model), rule="ledger", removed=1)[0]
    drawn = np.mean([record["windows"][str(one["order"][0])] for one in record["rankings"]["random"]], axis=0)
    test = stats.ttest_rel(record["windows"]["1"], drawn)
    assert row["t_p"] == pytest.approx(test.pvalue) and row["from_random"] == pytest.approx(
        np.mean(np.array(record["windows"]["1"]) - drawn)
    )
    low, high = test.confidence_interval(0.95)
    assert (row["low"], row["high"]) == pytest.approx((low, high))
    assert row["better"] is None and model.best(1) is None


def test_equal_sets_are_no_difference_and_the_ledger_has_rivals():
    record = made_record(1, noise=0.1)
    record["rankings"]["similarity"] = record["rankings"]["ledger"] * 3
    (same, wrong) = (
        rows_of(pruning.rivals(Model("mini", (record,))), against=rule, removed=1)[0]
        for rule in ("similarity", "magnitude")
    )
    assert (same["mean"], same["low"], same["high"], same["holm_p"]) == (0, 0, 0, 1)
    assert wrong["mean"] == pytest.approx(-3, abs=0.3) and wrong["holm_p"] < 0.05
    del record["rankings"]["ledger"]
    assert pruning.rivals(Model("smollm2-stdlib", (record,))) == []


def test_stability_and_importance_of_known_scores():
    model = Model("mini", tuple(made_record(training) for training in range(3)))
    rows = pruning.stability(model)
    assert [(row["rule"], row["over"]) for row in rows] == [
        ("ledger", "trainings"), ("magnitude", "trainings"), ("random", "chance"),
    ]  # fmt: skip
    assert rows[0]["kendall"] == 1 and rows[0]["orders"] == 1 and rows[0]["draws"] == 3
    wanted = np.mean([record["stability"]["random"]["spearman"] for record in model.records])
    assert rows[2]["spearman"] == pytest.approx(wanted)
    found = pruning.importance(model)
    (mean,) = rows_of(found, rule="ledger", training="mean")
    assert mean["spearman"] == pytest.approx(1) and mean["spearman_high"] <= 1
    assert rows_of(found, rule="magnitude", training=2)[0]["pearson"] == pytest.approx(-1)


def test_a_finished_run_is_found_again(tmp_path, monkeypatch):
    """Only what is not there, or was made otherwise, is made; runs whose text is not there are left out."""
    asked = []

    def made(one, runs, corpus):
        asked.append((one.name, str(corpus)))
        return {"kind": pruning_runs.KIND, "schema": pruning_runs.SCHEMA, "run": pruning_runs.asdict(one)}

    monkeypatch.setattr(pruning_runs, "FOLDER", tmp_path / "committed")
    monkeypatch.setattr(pruning_runs, "made", made)
    pruning_runs.run(tmp_path, only=("mini-0", "smollm2-bible"))
    pruning_runs.run(tmp_path, "words", only=("mini-0", "smollm2-bible"))
    assert asked == [("mini-0", "stdlib"), ("smollm2-bible", "words")]
    record = records.read_json(tmp_path / "mini-0.json")
    records.write_json(tmp_path / "mini-0.json", record | {"run": record["run"] | {"windows": 3}})
    pruning_runs.run(tmp_path, only=("mini-0",))
    assert [name for name, _ in asked] == ["mini-0", "smollm2-bible", "mini-0"]
    assert {path.name for path in (tmp_path / "committed" / "records").iterdir()} == {
        "mini-0.json",
        "smollm2-bible.json",
    }


def test_a_run_of_a_small_model(tiny, text, tmp_path, monkeypatch):
    """From the training to the record, at the size of a test: every set judged, no place of this machine named."""
    preset = tmp_path / "tiny.toml"
    preset.write_text('base = "tiny"\n[model]\nlayers = 4\nwidth = 8\n[training]\nsteps = 2\nevaluations = 1\n')
    monkeypatch.setattr(pruning_runs, "PRESET", preset)
    monkeypatch.setattr(pruning_runs, "CORPUS", str(text))
    one = pruning_runs.Run("small", "words", 2, ("ledger", "similarity", "random"), 0, 3, 4, 16, 0)
    record = pruning_runs.made(one, tmp_path, text)
    assert len(record["every_set"]) == 4 + 6 + 4 and record["text"]["source"] == text.name
    assert str(tmp_path) not in records.dumps(record)
    model = Model("mini", (record,))
    single = [record["every_set"][str(block)] - np.mean(record["windows"][""]) for block in range(4)]
    assert record["importance"]["importance"] == pytest.approx(single)
    assert len(pruning.curves(model)) == 3 * 2 and model.best(1)[0] == pytest.approx(min(single))


def test_the_committed_tables_come_from_the_committed_records():
    made = pruning.results(pruning.committed_models())
    for name, text in made.items():
        assert text == (pruning.FOLDER / name).read_text(encoding="utf-8"), name
    assert set(made) | {"records", "mini.toml"} == {path.name for path in pruning.FOLDER.iterdir()}
    for path in (pruning.FOLDER / "records").iterdir():
        assert not set("/\\") & set(records.read_json(path)["text"]["source"])
