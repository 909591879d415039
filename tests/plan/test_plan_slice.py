"""What slicing takes: counted against the model's own numbers; block by block less than at once."""

import pytest

from geowidth import cli
from geowidth.models import ModelConfig, TaperedTransformer, save_model
from geowidth.plan.models import model_sizes
from geowidth.plan.slicing import estimate_slice
from geowidth.slicing.apply import bytes_needed


def probe(request):
    assert request["probe"] == "measurement" and request["model"]["layers"] == 1
    return {"seconds": [0.1], "window": 0.5, "peak_bytes": 1000}


@pytest.fixture
def folder(tmp_path):
    save_model(TaperedTransformer(ModelConfig(256, 3, 16, 2, (24, 8, 30), 32), seed=1), tmp_path / "model")
    return tmp_path / "model"


def test_counts(folder):
    sizes = model_sizes(folder)
    few, many = (estimate_slice(sizes, calibration_windows=n, probe=probe) for n in (8, 64))
    parameters = sizes.parameters
    assert few.parameters == parameters and few.disk == 8 * parameters
    assert few.memory == 1000 + 8 * parameters + bytes_needed(30, 16, 8 * 32)
    assert few.facts["streamed_bytes"] < few.memory and many.memory > few.memory
    assert many.facts["pass_seconds"] == 64 * 3 * 0.5 == 8 * few.facts["pass_seconds"]
    # Two passes over the calibration text, both models over 32 windows, and the windows that are timed.
    assert few.seconds == pytest.approx(10 + (2 * 8 + 2 * 32 + 16) * 3 * 0.5, rel=0.05)


def test_the_command(folder, monkeypatch, capsys):
    from geowidth.plan import slicing

    monkeypatch.setattr(slicing, "run_probe", probe)
    assert cli.main(["plan", "slice", "--model", str(folder)]) == 0
    assert "block by block (geowidth slice --stream)" in capsys.readouterr().out
    assert cli.main(["plan", "slice"]) == 2 and "give --model NAME" in capsys.readouterr().err
    assert cli.main(["plan", "slice", "--model", str(folder), "--preset", "pico"]) == 2
    assert "--preset came with plan slice" in capsys.readouterr().err
