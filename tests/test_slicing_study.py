"""The study of slicing: its arithmetic on made cells, its cells on a tiny model, its committed tables."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.experiments.slicing import ROOT, analysis, cells, design, driver, ground, picture, results, table
from benchmarks.experiments.slicing.analysis import Study, summarise
from geowidth.cascade.held_out import window_losses
from geowidth.measure.opening import OpenedModel
from geowidth.slicing.correction import corrected
from tests.cascade.cascade_models import library

SIZES = ground.Sizes(context=16, calibration=6, held_out=3, sensitivity=2, tokens=24, windows=4, draws=2)


def made_study(effects, draws=5, windows=16, noise=0.02, seed=0):
    """A Study in which arms have these effects at both main shares, with noise that pairs share and noise of their
    own; its signal topology/spherical is the sensitivity itself."""
    generator, rows, known = np.random.default_rng(seed), {}, {}
    for text in design.TEXTS:
        for draw in range(draws):
            sensitivity = generator.permutation(12) + 1.0
            signals = {name: generator.normal(size=12).tolist() for name in design.SIGNALS}
            signals["topology/spherical"] = sensitivity.tolist()
            known[text, draw] = {
                "whole": [2.0, 2.2],
                "signals": signals,
                "sensitivity": [[v, v] for v in sensitivity.tolist()],
            }
            for kept in design.MAIN:
                shared = generator.normal(3, 0.5, windows)
                for arm, effect in {"uniform": 0.0, **effects}.items():
                    own = generator.normal(effect, noise, windows)
                    rows[text, draw, kept, arm] = {"losses": (shared + own).tolist()}
    return Study(rows, known)


def test_errors_over_windows_and_over_clusters_by_hand():
    one = summarise([np.array([1.0, 3.0]), np.array([4.0, 8.0])])
    assert (one.mean, one.clusters, one.windows) == (4.0, 2, 4)
    assert one.over_windows == pytest.approx(np.sqrt(2 / 2 + 8 / 2) / 2)
    assert one.over_clusters == pytest.approx(np.std([2, 6], ddof=1) / np.sqrt(2))
    alone = summarise([np.array([1.0])])
    assert (alone.mean, alone.over_windows, alone.over_clusters) == (1.0, None, None)


def test_an_effect_is_found_in_its_family_and_sorted_widths_that_do_as_well_are_told():
    topology, shift = design.CONTROLLED
    effects = {topology: -0.05, f"sorted {topology}": -0.05, f"reversed {topology}": 0.05, "cosine": 0.0}
    effects |= {shift: -0.05, f"sorted {shift}": 0.0}
    found = analysis.families(made_study(effects))
    assert {row["arm"] for row in found["uniform"] if row["holm_p"] <= 0.05} == {k for k, v in effects.items() if v}
    said = " ".join(analysis.verdicts(found))
    assert f"80% kept, {topology}: sorted widths do about as well" in said
    assert f"60% kept, {shift}: the order matters: it is better than sorted" in said
    assert [len(found[name]) for name in ("uniform", "order", "rivals")] == [12, 6, 4]


def test_pairs_are_those_clusters_in_which_both_arms_were_run():
    study = made_study({"cosine": 0.1})
    del study.cells["code", 3, 0.8, "cosine"]
    assert len(study.differences(0.8, "cosine")) == 9 and len(study.differences(0.6, "cosine")) == 10
    assert len(study.differences(0.8, "cosine", texts=("code",))) == 4
    assert study.differences(0.5, "cosine") == [] and analysis.contrast(study, 0.5, "cosine", "uniform") is None


def test_rank_correlations_and_their_permutation_p():
    generator = np.random.default_rng(0)
    x = generator.normal(size=30)
    y = x + generator.normal(size=30)
    rho, p = analysis.spearman_p(x, y)
    assert rho == pytest.approx(stats.spearmanr(x, y).statistic)
    assert p == pytest.approx(stats.spearmanr(x, y).pvalue, abs=2e-3)
    assert analysis.spearman_p(x, np.ones(30)) == (None, None)
    found = [analysis.spearman_p(generator.normal(size=12), y[:12], 499)[1] for _ in range(300)]
    assert abs(np.mean(np.array(found) <= 0.1) - 0.1) < 0.06


def test_the_signal_that_is_the_sensitivity_correlates_with_it_after_holm():
    rows = {row["signal"]: row for row in analysis.correlations(made_study({}, draws=1), "code")}
    assert len(rows) == 9 and rows["topology/spherical"]["rho"] == 1 and rows["topology/spherical"]["holm_p"] < 0.01
    assert all(row["holm_p"] >= row["p"] for row in rows.values())
    assert analysis.reliability(made_study({}, draws=1), "code") == pytest.approx(1)
    study = Study({}, {("code", 0): {"signals": {}}})
    assert analysis.correlations(study, "code") == []


def test_a_sensitivity_of_noise_alone_has_no_reliability_and_half_noise_that_of_its_length():
    generator = np.random.default_rng(0)
    noise, signal = generator.normal(size=(2000, 8)), generator.normal(size=(2000, 1))

    def found(windows):
        return analysis.reliability(Study({}, {("code", 0): {"sensitivity": windows.tolist()}}), "code")

    assert abs(found(noise)) < 0.1
    again = stats.spearmanr((signal + noise).mean(1), (signal + generator.normal(size=(2000, 8))).mean(1)).statistic
    assert found(signal + noise) == pytest.approx(again, abs=0.03)


def test_every_prefix_of_the_cells_has_uniform_before_what_is_compared_with_it():
    found = design.cells()
    assert len(set(found)) == len(found)
    seen = set()
    for cell in found:
        seen.add(cell.key)
        assert (cell.text, cell.draw, cell.kept, "uniform") in seen
    assert {cell.text for cell in found[: len(design.FIRST) * 3]} == set(design.TEXTS)
    assert len({arm.name for arm in (*design.FIRST, *design.SECOND)}) == len(design.ARMS)
    assert sum(arm.widths.startswith("geometry") for arm in design.ARMS.values()) == 9


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    generator = np.random.default_rng(0)
    for i in range(60):
        (folder / f"{i}.txt").write_bytes(generator.integers(97, 123, 200, dtype=np.uint8).tobytes())
    return folder


@pytest.fixture
def tiny(text_folder, tmp_path):
    """A Library of a tiny model whose text is random letters, in float32."""
    opened = OpenedModel(library("llama", vocab_size=256), {"name": "tiny"}, context=16)
    return ground.Library(opened, dict.fromkeys(design.TEXTS, str(text_folder)), SIZES, tmp_path / "work", half=False)


def test_no_window_is_in_two_draws_or_two_uses(tiny):
    early, late = [], []
    for calibration, sensitivity, held_out in tiny.windows("code"):
        assert [len(part.tokens) for part in (calibration, sensitivity, held_out)] == [6, 2, 3]
        early += [tuple(row.tolist()) for part in (calibration, sensitivity) for row in part.tokens]
        late += [tuple(row.tolist()) for row in held_out.tokens]
    assert len(set(early)) == 16 and len(set(late)) == 6 and not set(early) & set(late)


def test_losses_are_those_of_window_losses(tiny):
    text = tiny.windows("code")[0][2]
    assert cells.losses(tiny.opened.model, text, False) == pytest.approx(
        window_losses(tiny.opened.model, text), abs=1e-5
    )


@pytest.mark.parametrize("kept", [4, 20])
def test_corrections_by_shared_statistics_are_those_of_the_package_on_the_same_activations(tiny, kept):
    generator = torch.Generator().manual_seed(0)
    h, columns = torch.randn(200, 24, generator=generator), torch.randn(16, 24, generator=generator)
    indices = torch.randperm(24, generator=generator)[:kept].sort().values
    for how, ridges, bias in (("least squares", (design.RIDGE,), False), ("bias", (), True)):
        ours = cells.correction(h.T @ h, h.mean(0), columns, indices, how)
        theirs = corrected(h, columns, indices, ridges, 0, bias)
        for name in ("columns", "bias"):
            one, other = getattr(ours, name), getattr(theirs, name)
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one.double(), other.double(), rtol=1e-3, atol=1e-4)
    assert cells.correction(h.T @ h, h.mean(0), columns, indices, "none").columns is None


def test_a_gram_matrix_that_float32_finds_singular_is_solved_in_float64():
    base = torch.tensor([[1e8, 1e8], [1e8, 1e8 + 1]])
    gram = torch.block_diag(base, torch.eye(2))
    found = cells.solved(gram, gram)
    damped = gram.double() + design.RIDGE * gram.double().diagonal().mean() * torch.eye(4)
    torch.testing.assert_close(found.double(), torch.linalg.solve(damped, gram.double()), rtol=1e-4, atol=1e-4)


def test_statistics_are_those_of_the_package(tiny):
    from geowidth.slicing.scores import neuron_scores

    one = tiny.ground("code", 1)
    for rule in ("activation", "fluctuation", "minitron"):
        for ours, theirs in zip(one.scores(rule), neuron_scores(tiny.ffns, one.calibration, rule), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4)


def test_depth_leaves_no_more_parameters_than_uniform_widths(tiny):
    ffns, blocks = tiny.ffns, tiny.blocks
    whole = sum(p.numel() for p in tiny.opened.model.parameters())
    for kept in (0.9, 0.5, 0.3):
        removed = (24 - int(kept * 24)) * 3 * 3 * 16
        for share in (0.5, 1.0):
            widths, gone = cells.depth_and_width(ffns, blocks, [2, 0, 1], kept, share)
            left = whole - sum(p.numel() for i in gone for p in blocks.parameters(i))
            left -= sum((24 - w) * 3 * 16 for w in widths if w)
            assert whole - removed - 3 * 3 * 16 < left <= whole - removed and gone == sorted([2, 0, 1][: len(gone)])


def test_cells_are_run_once_resumed_after_a_cut_line_and_drawn(tiny, tmp_path):
    arms = ("uniform", "topology/spherical", "permuted topology/spherical", "sensitivity", "FLAP", "depth")
    asked = [
        design.Cell(text, draw, kept, arm)
        for text in design.TEXTS
        for draw in (0, 1)
        for kept in design.MAIN
        for arm in arms
    ]
    before = {name: value.clone() for name, value in tiny.opened.model.state_dict().items()}
    driver.run_cells(tiny, tmp_path, asked[:7])
    written = (tmp_path / analysis.CELLS).read_bytes()
    (tmp_path / analysis.CELLS).write_bytes(written + b'{"text": "co')
    driver.run_cells(tiny, tmp_path, asked)
    assert (tmp_path / analysis.CELLS).read_bytes().startswith(written)
    for name, value in tiny.opened.model.state_dict().items():
        assert torch.equal(value, before[name])
    study = Study.read(tmp_path)
    assert set(study.cells) == {cell.key for cell in asked} and len(study.ground) == 4
    for (*_, kept, _), row in study.cells.items():
        assert len(row["losses"]) == SIZES.held_out
        assert row["removed"] >= (24 - int(kept * 24)) * 3 * 3 * 16 - 3 * 16 * 3
    files = results.of_study(study)
    assert "| FLAP |" in files[results.TABLES] and "| FLAP: its threshold" in files[results.HEADLINE]
    assert "<svg" in files[results.PICTURE]
    assert files[results.PAGE].count("<table") >= 5
    again = dataclasses.replace(SIZES, context=8)
    other = ground.Library(tiny.opened, tiny.corpora, again, tiny.work, half=False)
    with pytest.raises(Exception, match="sizes"):
        driver.run_cells(other, tmp_path, asked)


def test_the_whole_width_gives_the_whole_models_losses(tiny, tmp_path):
    row = cells.run(tiny.ground("code", 0), design.Cell("code", 0, 1.0, "uniform"))
    whole = cells.losses(tiny.opened.model, tiny.ground("code", 0).held_out, False)
    assert row["losses"] == pytest.approx(whole, abs=1e-5) and row["removed"] == 0 and row["widths"] == [24] * 3


@pytest.mark.parametrize("arm", ["curves", "combined", "threshold", "Minitron", *design.CHECKS])
def test_every_kind_of_arm_runs(tiny, arm):
    row = cells.run(tiny.ground("code", 0), design.Cell("code", 0, 0.5, arm))
    assert sum(row["widths"]) <= 36 and all(np.isfinite(row["losses"]))
    if arm.startswith("uniform"):
        assert row["widths"] == [12] * 3


def test_without_the_prose_one_line_says_how_to_make_it(tmp_path, capsys):
    from benchmarks.experiments.slicing.__main__ import main

    assert main(["--run", "--work", str(tmp_path)]) == 2
    assert "benchmarks.experiments.prose" in capsys.readouterr().err


def test_the_picture_and_the_tables_hold_every_arm():
    study = made_study({arm: 0.01 * i for i, arm in enumerate(design.ARMS) if i})
    drawn, tables = picture.svg(study), table.everything(study)
    for arm in design.ARMS:
        assert arm == "uniform" or (f">{arm}</text>" in drawn and f"| {arm} |" in tables)


def test_committed_tables_follow_from_the_committed_cells():
    for name, text in results.of_folder(ROOT).items():
        assert (ROOT / name).read_text(encoding="utf-8") == text
