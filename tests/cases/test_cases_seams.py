"""An extension module outside the package: a geometry, statistics for the device and the host, a backend."""

import csv
import json
import os
import subprocess
import sys

import pytest

EXTENSION = """
import numpy as np
import torch

from geowidth.geometry import GEOMETRIES, Geometry
from geowidth.measure.statistics import STATISTICS, Statistic
from geowidth.ops.backend import OPERATIONS, Backend

GEOMETRIES.register(Geometry("manhattan", False, "blocks", lambda x, y, radius: (x[:, None] - y).abs().sum(-1)))
GEOMETRIES.register(Geometry("chord", True, "chords", from_angle=lambda angle, radius: 2 * torch.sin(angle / 2)))


def growth(cloud, geometry):
    before, after = cloud.distances[geometry]
    return after.mean() / before.mean(), {}


def far(cloud, geometry):
    return np.asarray(cloud.on_host(geometry)[1]).max(), {"pairs": 1}


STATISTICS.register(Statistic("growth", growth))
STATISTICS.register(Statistic("far", far, place="host", reads=("distances",)))
OPERATIONS["dimension"].add(Backend("mine", ("cpu",), lambda matrix, k, names, count: {n: 7.0 for n in names}))
"""
CLOUDS = """
import torch
from geowidth.artifacts.clouds import Clouds
g = torch.Generator().manual_seed(0)
before = torch.randn(2, 24, 6, generator=g)
after = before + 0.3 * torch.randn(2, 24, 6, generator=g)
clouds = Clouds(before, after, torch.arange(24), torch.arange(24), (8, 8), projections=3, settings={})
clouds.write("clouds.safetensors")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine_geowidth.py").write_text(EXTENSION)
    done = subprocess.run([sys.executable, "-c", CLOUDS], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return tmp_path


def geowidth(folder, *words, extensions="mine_geowidth", **variables):
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "GEOWIDTH_EXTENSIONS": extensions, **variables}
    command = [sys.executable, "-m", "geowidth", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


ASKED = ("--geometries", "manhattan", "hyperbolic", "chord", "--statistics", "far", "topology", "growth", "shift")


def test_seams_the_command_line_measures_allocates_and_reports_what_an_extension_brings(folder):
    done = geowidth(folder, "measure", "clouds.safetensors", *ASKED, "--plot", "work.svg")
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "work.json").read_text())
    assert list(record["work"]) == ["manhattan", "hyperbolic", "chord"]
    assert list(record["work"]["manhattan"]) == ["far", "topology", "growth", "shift"]
    assert done.stdout.splitlines()[0].split()[:4] == ["far", "far", "far", "topology"]
    plain = geowidth(
        folder, "measure", "clouds.safetensors", "--geometries", "hyperbolic", "--out", "plain.json", extensions=""
    )
    assert plain.returncode == 0, plain.stderr
    expected = json.loads((folder / "plain.json").read_text())["work"]["hyperbolic"]
    assert {name: record["work"]["hyperbolic"][name] for name in ("topology", "shift")} == {
        name: expected[name] for name in ("topology", "shift")
    }
    words = ("allocate", "--work", "work.json", "--multiple", "8", "--geometry", "manhattan", "--statistic", "growth")
    assert geowidth(folder, *words).returncode == 0
    mixed = geowidth(folder, *words[:5], "--mixture", "growth/manhattan=1,far/chord=2")
    assert mixed.returncode == 0, mixed.stderr
    for extensions, unit in (("mine_geowidth", "blocks"), ("", "")):
        done = geowidth(folder, "report", ".", extensions=extensions)
        assert done.returncode == 0, done.stderr
        rows = list(csv.DictReader((folder / "work.csv").read_text(encoding="utf-8").splitlines()))
        mine = [row for row in rows if row["geometry"] == "manhattan" and row["statistic"] == "far"]
        assert [row["unit"] for row in mine] == [unit] * 2


def test_seams_without_the_extension_its_names_are_refused_with_those_that_are_there(folder):
    done = geowidth(folder, "measure", "clouds.safetensors", "--geometries", "manhattan", extensions="")
    assert done.returncode == 2 and "is 'manhattan'; allowed: raw, spherical, hyperbolic" in done.stderr
    done = geowidth(folder, "measure", "clouds.safetensors", "--statistics", "far", extensions="")
    assert done.returncode == 2 and "allowed: shift, gw, topology, gw_entropic" in done.stderr
    done = geowidth(folder, "measure", "clouds.safetensors", extensions="not_there")
    assert done.returncode == 2 and "extension 'not_there' (GEOWIDTH_EXTENSIONS) cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr and not (folder / "work.json").exists()


def test_seams_backends_are_asked_for_op_by_op_and_added_from_outside(folder):
    def dimension(**variables):
        done = geowidth(folder, "measure", "clouds.safetensors", "--statistics", "shift", **variables)
        assert done.returncode == 0, done.stderr
        return json.loads((folder / "work.json").read_text())["dimension"]["mle"]

    assert dimension(GEOWIDTH_BACKEND="dimension=mine,torch") == [7.0, 7.0] != dimension()
    text = geowidth(folder, "doctor", GEOWIDTH_BACKEND="dimension=mine").stdout
    assert "dimension: mine\n    not numpy: GEOWIDTH_BACKEND asks for mine" in text and "mine_geowidth (" in text
    native = geowidth(folder, "measure", "clouds.safetensors", *ASKED, GEOWIDTH_BACKEND="pairwise_distances=native")
    assert native.returncode == 2 and "raw, spherical, hyperbolic only, not for manhattan" in native.stderr
    wrong = geowidth(folder, "measure", "clouds.safetensors", GEOWIDTH_BACKEND="ffn=nothing")
    assert wrong.returncode == 2 and "the backend of ffn in GEOWIDTH_BACKEND is 'nothing'" in wrong.stderr
