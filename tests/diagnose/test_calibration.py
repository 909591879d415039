"""`geowidth calibrate` end to end on a model that trains in a blink; what it refuses; the schedules it feeds."""

import json

import numpy as np
import pytest
from work_profiles import make_profile

from geowidth import records
from geowidth.allocate import allocate
from geowidth.cli import main
from geowidth.diagnose.calibration import Calibration, calibrate, fitted_curve, summarise
from geowidth.diagnose.calibration_design import CalibrationDesign
from geowidth.diagnose.calibration_plot import plot_calibration
from geowidth.diagnose.sweep import basis
from geowidth.errors import UserError
from geowidth.models.config import ModelConfig
from geowidth.models.presets import NANO, Preset, RunSettings
from geowidth.models.training import TrainingSettings

TINY = Preset(
    "tiny",
    ModelConfig(vocabulary=256, layers=4, dimension=8, heads=1, widths=(16,) * 4, context=8),
    TrainingSettings(steps=2, batch=2, microbatch=2, learning_rate=1e-3, evaluation_windows=2),
    RunSettings(seeds=(0,), arms=("uniform",), measured_tokens=32, multiple=4),
)


@pytest.fixture
def text(tmp_path):
    """A small corpus."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i}.txt").write_text(f"The {i}th page says {i * i} and nothing else.\n" * 4)
    return folder


def synthetic(difficulty, exponent, noise=0.0, preset=NANO, **design):
    """The Calibration of losses made by known curves."""
    design = CalibrationDesign(preset, **design)
    generator = np.random.default_rng(1)
    curve = np.asarray(difficulty)[:, None] * basis(design.ratios, np.asarray(exponent)[:, None])
    table = [[2.0 + seed, *(2.0 + seed + curve).ravel()] for seed in design.seeds]
    table = np.array(table) + noise * generator.normal(size=(len(table), curve.size + 1))
    return summarise(design, table.ravel(), make_profile(preset.model.layers, preset.base_width))


def test_trains_fits_writes_and_goes_on(tmp_path, text):
    out = tmp_path / "calibration"
    arguments = {"seeds": (0, 1), "factors": (0.25, 4), "steps": 2, "corpus": text, "processes": 2}
    found = calibrate(out, TINY, work=make_profile(4, 16), **arguments)
    assert len(found.curves) == 2 * (1 + 4 * 2) and found.widths == (16,) * 4
    assert {row["width"] for row in found.curves} == {None, 4, 64}
    results = sorted(out.glob("runs/**/result.json"))
    assert len(results) == 18
    for row in found.curves:
        name = "base" if row["layer"] is None else f"layer-{row['layer']}/width-{row['width']}"
        assert row["loss"] == records.read_json(out / "runs" / name / f"seed-{row['seed']}" / "result.json")["loss"]
    before = {path: path.stat().st_mtime_ns for path in results}
    again = calibrate(out, TINY, work=make_profile(4, 16), **arguments)
    assert {path: path.stat().st_mtime_ns for path in results} == before
    assert again == Calibration.read(out / "calibration.json")
    assert (out / "curves.csv").read_text().count("\n") == 19
    with pytest.raises(UserError, match="name another folder"):
        calibrate(out, TINY, work=make_profile(4, 16), **{**arguments, "steps": 3})


def test_known_curves_come_back_with_words():
    e, a = np.linspace(0.02, 0.2, 8), np.full(8, 0.4)
    found = synthetic(e, a, noise=0.001)
    assert found.shared["exponent"] == pytest.approx(0.4, abs=0.05)
    assert found.shared["difficulty"] == pytest.approx(e, abs=0.02)
    assert "one exponent for all layers a = 0.4" in found.sentence and "no lack of fit" in found.sentence
    assert set(found.signals) == {"raw", "spherical", "hyperbolic"}
    assert all(set(table) == {"shift", "gw", "topology"} for table in found.signals.values())
    assert fitted_curve(found, 7, [256]) == pytest.approx([0.0])
    assert fitted_curve(found, 7, [64])[0] == pytest.approx(0.2 * (4**0.4 - 1), rel=0.1)


def test_a_signal_that_predicts_is_seen():
    generator = np.random.default_rng(2)
    e = generator.permutation(np.linspace(0.02, 0.2, 8))
    design = CalibrationDesign(NANO)
    curve = e[:, None] * basis(design.ratios, 0.4)
    table = np.array([[2.0, *(2.0 + curve).ravel()]] * 4) + 1e-4 * generator.normal(size=(4, 25))
    profile = make_profile(8, 256)
    profile.work["raw"]["gw"] = (3 * e).tolist()
    found = summarise(design, table.ravel(), profile)
    assert found.signals["raw"]["gw"]["difficulty"]["rho"] == pytest.approx(1.0)
    assert "gw x raw follows the fitted difficulties" in found.sentence and "this holds" in found.sentence


def test_schedules_from_a_calibration(tmp_path):
    path = tmp_path / "calibration.json"
    e = np.array([0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.02, -0.01])
    records.write_json(path, synthetic(e, np.full(8, 0.4), noise=1e-5).to_json())
    found = allocate("calibrated", layers=8, base_width=256, calibration=str(path), quantum=8)
    assert (np.diff(found.widths) <= 0).all() and found.widths[-1] == 64
    assert found.details["notes"] == ["the loss did not fall as these layers became wider: 7; they get the floor"]
    assert found.details["exponents"] == pytest.approx([0.4] * 8, abs=0.01)
    own = allocate("calibrated", layers=8, base_width=256, calibration=str(path), quantum=8, shared=False)
    assert own.budget == found.budget
    work = make_profile(8, 256)
    fitted = allocate(work=work, exponent="fitted", calibration=str(path))
    assert fitted.details["exponents"] == pytest.approx(Calibration.read(path).exponents)
    for options in ({"exponent": "fitted"}, {"calibration": str(path)}):
        with pytest.raises(UserError, match="go together"):
            allocate(work=work, **options)
    with pytest.raises(UserError, match="8 layers, 6 are asked for"):
        allocate("calibrated", layers=6, base_width=256, calibration=str(path))
    with pytest.raises(UserError, match="shared is 2"):
        allocate("calibrated", layers=8, base_width=256, calibration=str(path), shared=2)


def test_the_picture_and_strict_json(tmp_path):
    found = synthetic(np.linspace(0.02, 0.2, 8), np.full(8, 0.4), noise=0.001)
    plot_calibration(found, tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text()
    assert text.rstrip().endswith("</svg>") and "layer 7" in text
    json.loads(records.dumps(found.to_json()), parse_constant=lambda word: pytest.fail(word))


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "calibration.json"
    value = synthetic(np.linspace(0.02, 0.2, 8), np.full(8, 0.4), noise=0.001).to_json()
    for change in ({"layers": None}, {"layers": [{}] * 8}, {"shared": {}}, {"widths": [256]}, {"widths": None}):
        records.write_json(path, value | change)
        with pytest.raises(UserError, match="lacks fits of some layers"):
            Calibration.read(path)
    value.pop("layers")
    records.write_json(path, value)
    with pytest.raises(UserError, match="lacks layers"):
        Calibration.read(path)


def test_fitted_exponents_that_are_guesses_are_noted(tmp_path):
    path = tmp_path / "calibration.json"
    record = synthetic(np.linspace(0.02, 0.2, 8), np.full(8, 0.4), noise=1e-5).to_json()
    for layer, row in enumerate(record["layers"]):
        row["determined"] = layer not in (2, 5)
    records.write_json(path, record)
    note = "the calibration does not determine the exponents of these layers: 2 5"
    own = allocate("calibrated", layers=8, base_width=256, calibration=str(path), shared=False)
    assert own.details["notes"] == [note]
    assert allocate(work=make_profile(8, 256), exponent="fitted", calibration=str(path)).details["notes"] == [note]
    assert "notes" not in allocate("calibrated", layers=8, base_width=256, calibration=str(path)).details
    record["shared"]["exponent_interval"] = [0.2, 4.0]
    records.write_json(path, record)
    notes = allocate("calibrated", layers=8, base_width=256, calibration=str(path)).details["notes"]
    assert notes == ["the calibration does not determine the exponent that all layers share"]


def test_an_exponent_at_the_end_of_the_search_is_said_to_be_there():
    loose = synthetic(np.full(8, 1e-4), np.full(8, 0.4), noise=0.05)
    assert not loose.shared_determined and "do not bound it, the search ends there" in loose.sentence
    assert "do not bound it" not in synthetic(np.linspace(0.02, 0.2, 8), np.full(8, 0.4), noise=1e-5).sentence


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "nono"], "preset is 'nono'"),
        (["--seeds", "0", "0"], "--seeds is 0 0; allowed: each once"),
        (["--seeds", "-1"], "--seeds is -1; allowed: whole numbers from 0 up"),
        (["--factors", "2"], "two or more different"),
        (["--factors", "2", "-1"], "--factors is -1; allowed: finite numbers above 0"),
        (["--factors", "2", "nan"], "--factors is 'nan'; allowed: finite numbers above 0"),
        (["--factors", "2", "1"], "leaves the width at 256"),
        (["--factors", "2", "2.001"], "the same multiple of 8"),
        (["--factors", "2", "4", "--seeds", "0"], "take more of them"),
        (["--steps", "0"], "--steps is 0; allowed: whole numbers from 1 up"),
        (["--tokens", "2"], "tokens is 2;"),
        (["--processes", "0"], "processes is 0"),
        (["--work", "nowhere.json"], "cannot read nowhere.json"),
        (["--corpus", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_bad_requests_stop_before_any_work(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("geowidth.train.train_many", lambda *_, **__: pytest.fail("training began"))
    assert main(["calibrate", *words, "--out", "folder"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and errors[0].startswith("geowidth: ") and message in errors[0]
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_the_command(capsys):
    from geowidth.cli.calibrate import table

    lines = table(synthetic(np.linspace(0.02, 0.2, 8), np.full(8, 0.4), noise=0.001)).splitlines()
    assert len(lines) == 1 + 8 + 1 + 9 and lines[1].split()[0] == "0"
