"""The experiments' scripts: corrected comparisons with known answers, and committed tables that repeat."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.experiments import baseline, cascade, order, prose, study
from benchmarks.experiments.order import Contrast, Study
from geowidth import records
from geowidth.allocate.arms import parse_arms
from geowidth.chain import allocate_arm, resolve
from geowidth.errors import UserError
from geowidth.train.corrections import holm, paired_t_p
from tests.cascade.made_studies import make_study
from tests.tiny_preset import TINY
from tests.work_profiles import make_profile

ARMS = ("uniform", "geometry", "sorted", "reversed", "permuted")
WIDTHS = {"uniform": [16, 16, 16], "geometry": [24, 8, 16], "sorted": [24, 16, 8]}
WIDTHS |= {"reversed": [16, 8, 24], "permuted": [8, 24, 16]}


def made_study(effect, seeds=6, noise=0.01, generator=None, name="made"):
    """A Study in which geometry is `effect` above all other arms, with noise that pairs share and noise of its own."""
    generator = generator or np.random.default_rng(0)
    shared = generator.normal(0, 0.1, seeds)
    losses = {}
    for arm in ARMS:
        own = generator.normal(0, noise, seeds) + (effect if arm == "geometry" else 0)
        losses[arm] = {s: {5: 3.0 + shared[s], 10: 2.0 + shared[s] + own[s]} for s in range(seeds)}
    return Study(name, losses, {arm: (WIDTHS[arm], None) for arm in ARMS})


def test_an_effect_is_found_and_its_size_told():
    contrasts, left_out = order.order_family([made_study(-0.05), made_study(-0.05, name="other")])
    assert [(c.corpus, c.against) for c in contrasts] == [(n, a) for n in ("made", "other") for a in order.CONTROLS]
    rows = order.judge(contrasts)
    assert all(row["holm_p"] <= 0.05 and abs(row["mean"] + 0.05) < 0.02 for row in rows) and not left_out
    text = order.sentence("order", rows, left_out)
    assert "6 comparisons" in text and "6 after Holm" in text and "below sorted" in text


def test_pooled_pairs_are_means_over_signals_and_all_seeds_of_all_corpora():
    first, second = made_study(-0.05), made_study(0.01, seeds=4)
    for name in ("geometry", "sorted"):
        first.losses[f"{name}:statistic=gw"] = {s: {10: steps[10] + 1} for s, steps in first.losses[name].items()}
        first.widths[f"{name}:statistic=gw"] = first.widths[name]
    contrasts, _ = order.pooled_family([first, second])
    assert [c.against for c in contrasts] == list(order.CONTROLS) and all(len(c.pairs) == 10 for c in contrasts)
    expected = np.concatenate([first.pairs("geometry", "sorted"), second.pairs("geometry", "sorted")])
    assert contrasts[0].pairs == pytest.approx(expected)
    assert order.judge(contrasts)[0]["seeds"] == 10


def test_p_values_are_those_of_scipy():
    one = made_study(0.01)
    for contrast, row in zip(order.order_family([one])[0], order.judge(order.order_family([one])[0]), strict=True):
        ours = [one.losses["geometry"][s][10] for s in range(6)]
        theirs = [one.losses[contrast.against][s][10] for s in range(6)]
        assert row["t_p"] == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-9)


def test_a_null_family_is_wrong_in_one_case_of_twenty_at_most():
    generator, runs = np.random.default_rng(1), 1500
    wrong = 0
    for _ in range(runs):
        studies = [made_study(0, 5, generator=generator) for _ in range(2)]
        contrasts = order.order_family(studies)[0]
        wrong += min(holm([paired_t_p(c.pairs) for c in contrasts])) <= 0.05
    assert 0 < wrong <= runs * 0.05 + 3 * np.sqrt(runs * 0.05 * 0.95)


def test_equal_widths_are_no_comparison():
    one = made_study(0)
    one.widths["sorted"] = one.widths["geometry"]
    contrasts, left_out = order.order_family([one])
    assert [c.against for c in contrasts] == ["reversed", "permuted"] and "sorted" in left_out[0]
    assert paired_t_p(np.zeros(4)) == 1.0
    one.widths["permuted"] = (WIDTHS["permuted"], [1.0, 2.0, 1.0])
    assert len(order.uniform_family([one])[0]) == 4


def test_controls_belong_to_their_own_signal():
    names = ("geometry", "sorted", "geometry:statistic=gw", "sorted:statistic=gw,rising=true", "permuted:seed=3")
    names += ("reversed-cosine", "inverse")
    losses = {name: {s: {1: 1.0 + s} for s in range(3)} for name in names}
    found = order.order_family([Study("made", losses, {n: ([i], None) for i, n in enumerate(names)})])[0]
    assert [(c.arm, c.against) for c in found] == [
        ("geometry", "sorted"), ("geometry", "permuted:seed=3"),
        ("geometry:statistic=gw", "sorted:statistic=gw,rising=true"),
    ]  # fmt: skip


def test_no_difference_is_said_with_its_reach():
    rows = order.judge([Contrast("made", "a", "b", np.array([0.01, -0.01, 0.02, -0.02, 0.0]))])
    text = order.sentence("order", rows, [])
    assert "0 after Holm" in text and f"{rows[0]['high']:.4f}" in text and "0.0625" in text


def test_a_study_is_the_run_and_its_losses_are_collected(tmp_path):
    chain = resolve(TINY, arms=("uniform", "cosine", "sorted"), seeds=(0, 1), tokens=16)
    study.train(chain, tmp_path / "run", 1)
    study.collect(tmp_path / "run", tmp_path / "kept")
    kept = Study.read(tmp_path / "kept")
    for arm in records.read_json(tmp_path / "kept" / "comparison.json")["arms"]:
        last = {seed: steps[TINY.training.steps] for seed, steps in kept.losses[arm["arm"]].items()}
        assert last == {int(seed): loss for seed, loss in arm["losses"].items()}
        assert kept.widths[arm["arm"]][0] == arm["widths"] and len(kept.steps) == TINY.training.evaluations


def test_the_headline_has_every_arm_of_every_corpus():
    studies = [made_study(-0.05), made_study(-0.05, name="other")]
    studies[1].widths["sorted"] = studies[1].widths["uniform"]
    lines = order.headline(order.judge(order.uniform_family(studies)[0])).splitlines()
    assert len(lines) == 2 + len(ARMS) - 1 and "| made | other |" in lines[0]
    assert "geometry, topology x hyperbolic | \N{MINUS SIGN}0.0" in lines[2] and lines[3].endswith("| same widths |")
    other = order.judge(order.uniform_family([made_study(0)])[0])
    seeds = [row | {"corpus": "other", "arm": row["arm"].replace("permuted", "permuted:seed=3")} for row in other]
    assert len(order.headline([*other, *seeds]).splitlines()) == 2 + len(ARMS) - 1
    assert order.spelled("sorted:statistic=gw,geometry=spherical") == "sorted geometry, gw x spherical"
    assert order.spelled("cosine:initial_scale=alone") == "cosine, initial scale alone"


def test_a_matched_permutation_holds_the_direction_and_changes_the_order():
    assert study.direction([1, 1, 1]) == 0 and study.direction([3, 0, 0]) == -1 and study.direction([1, 2, 3]) > 0
    model = replace(TINY.model, layers=6, widths=(40,) * 6)
    chain = resolve(replace(TINY, model=model), arms=("uniform", "geometry"))
    work = make_profile(6, 40, model_dimension=16, dimension={"twonn_mle": [8.0] * 6})
    work.work["hyperbolic"]["topology"] = [9.0, 4.0, 1.0, 1.5, 2.0, 3.0]
    own = allocate_arm(chain, chain.arms[1], work).widths
    seed, widths = study.matched_seed(chain, chain.arms[1], work)
    (arm,) = parse_arms([f"permuted:seed={seed}"])
    assert widths == allocate_arm(chain, arm, work).widths and sorted(widths) == sorted(own)
    assert sum(a != b for a, b in zip(widths, own, strict=True)) > 3
    assert abs(study.direction(widths) - study.direction(own)) < 0.02 < abs(study.direction(own))


def test_the_studies_take_the_best_cell_of_the_sweep():
    rows = [row for row in baseline.read_cells() if row["corpus"] == "stdlib"]
    best = min(rows, key=lambda row: float(row["loss"]))
    for name in [path.parent.name for path in study.ROOT.glob("*/run.toml")]:
        preset = study.chain_of(name).preset
        model, training = preset.model, preset.training
        chosen = model.layers, model.dimension, model.widths[0], training.batch, training.learning_rate
        assert chosen == tuple(float(best[n]) for n in ("layers", "dimension", "width", "batch", "learning_rate"))


def test_verses_become_chapters():
    texts = prose.chapters("Ge1:1 In the beginning.\nGe1:2 And.\n1Chr29:30 With all.\n")
    assert texts == {"Ge-001.txt": "In the beginning.\nAnd.\n", "1Chr-029.txt": "With all.\n"}
    assert prose.digest(texts) == prose.digest(dict(reversed(texts.items()))) != prose.digest({"Ge-001.txt": "In"})
    with pytest.raises(UserError, match="not a verse"):
        prose.chapters("Genesis 1\n")


def test_another_text_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prose, "verses", lambda: "Ge1:1 In the beginning.\n")
    assert prose.main([str(tmp_path / "out")]) == 2 and "sha256" in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and prose.main([]) == 2
    monkeypatch.setattr(prose, "SHA256", prose.digest({"Ge-001.txt": "In the beginning.\n"}))
    assert prose.main([str(tmp_path / "out")]) == 0 and (tmp_path / "out" / "Ge-001.txt").is_file()


def test_without_the_program_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(prose, "COMMAND", ("no-such-program-here",))
    with pytest.raises(UserError, match="apt-get install"):
        prose.verses()


def test_committed_tables_follow_from_the_committed_losses():
    for name, text in order.results(order.committed_studies()).items():
        assert (order.ROOT / "order" / name).read_text(encoding="utf-8") == text


def test_a_finished_study_is_collected_and_an_unfinished_one_is_not(tmp_path):
    make_study(tmp_path / "run", arms=["adamw", "repeat"], seeds=(0, 1, 2))
    cascade.collect(tmp_path / "run", tmp_path / "kept")
    record = records.read_json(tmp_path / "kept" / "study.json", "geowidth.cascade_study", 1)
    assert {path.name: path.read_text() for path in (tmp_path / "kept").iterdir() if path.name != "study.json"} == (
        cascade.texts_of(record)
    )
    table = (tmp_path / "kept" / "headline.md").read_text()
    low, high = record["arms"][1]["differences"]["late_half"]["interval"]
    assert f"({100 * low:+.1f} to {100 * high:+.1f})" in table and "| plain |" in table and record["headline"] in table
    make_study(tmp_path / "half", arms=["adamw", "repeat"], seeds=(0, 1), unfinished=[("repeat", 1)])
    with pytest.raises(UserError, match="half is not finished: repeat: seed 1"):
        cascade.collect(tmp_path / "half", tmp_path / "kept")


def test_the_committed_study_is_what_its_record_says():
    record = cascade.committed()
    assert len(record["settings"]["seeds"]) == 6 and len(record["arms"]) == 8 and not record["missing"]
    for name, text in cascade.texts_of(record).items():
        assert (cascade.FOLDER / name).read_text(encoding="utf-8") == text
