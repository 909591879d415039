"""The promise of the seams: a module outside the package adds one of each, and the whole chain runs with them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from geowidth import records
from geowidth.artifacts.clouds import Clouds

HERE = Path(__file__).parent / "extension"
ARMS = [
    "uniform", "steps:rise=3", "reversed-steps:rise=3", "geometry:geometry=city,statistic=reach",
    "in_proportion:geometry=city,statistic=growth", "permuted-in_proportion:geometry=raw,statistic=reach,seed=2",
]  # fmt: skip

# What follows the run, in one process: its commands by name, and what only Python can ask.
AFTER = """
import json, sys, torch
from geowidth import cli
from geowidth.errors import UserError

model, exported, clouds, work = sys.argv[1:]
assert cli.main(["export", model, "--format", "sums", "--out", exported]) == 0
assert cli.main(["measure", model, "--corpus", "text.txt", "--tokens", "24", "--save-clouds", clouds, "--out", work,
                 "--geometries", "city", "raw", "--statistics", "growth", "reach"]) == 0
assert cli.main(["allocate", "--list"]) == 0

import an_extension
from geowidth.measure import MeasureSettings, capture, measure_clouds
from geowidth.ops import pairwise_distances

torch.manual_seed(0)
found = capture(an_extension.Toy(), torch.arange(400) % 11, 12, skip=0)
profile = measure_clouds(found, MeasureSettings(statistics=("shift",)))


def refusal(call):
    try:
        call()
    except UserError as error:
        return str(error)


from geowidth.measure.opening import open_model
from geowidth.slicing import Evidence, Keep, ffns_of, slice_widths

sliced = slice_widths("reversed-norms:power=3", Evidence(ffns_of(open_model(model, causal=True).model)), Keep(0.5))
points = torch.rand(5, 3)
facts = {
    "sliced": [sliced.widths, sliced.details["source_widths"]],
    "family": found.settings["family"], "widths": found.widths, "shift": profile.work["raw"]["shift"],
    "native": refusal(lambda: pairwise_distances(points, geometry="city", backend="native")),
    "statistic": refusal(lambda: MeasureSettings(geometries=("spherical",), statistics=("growth",))),
    "format": refusal(lambda: __import__("geowidth.exchange.formats").exchange.formats.export_untrained(
        {"num_hidden_layers": 2}, [4, 4], "never", "sums")),
}
print(json.dumps(facts))
"""


def environment(tmp_path):
    paths = os.pathsep.join([str(HERE), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")])
    return os.environ | {
        "PYTHONPATH": paths, "GEOWIDTH_EXTENSIONS": "an_extension", "GEOWIDTH_BACKEND": "persistence=counted",
        "EXTENSION_NOTES": str(tmp_path / "notes.txt"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def call(tmp_path, *words):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, env=environment(tmp_path), timeout=300
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(folder, run folder, facts of AFTER) of the chain with everything from outside."""
    folder = tmp_path_factory.mktemp("extension")
    (folder / "text.txt").write_text("".join(f"{n} is followed by {n + 1}. " for n in range(900)))
    words = ["--preset", "femto", "--corpus", "text.txt", "--out", "run", "--processes", "1", "--on", "noted:well"]
    words += ["--arms", *ARMS]
    ran = call(folder, "-m", "geowidth", "run", *words)
    assert ran.returncode == 0, ran.stderr
    after = call(folder, "-c", AFTER, "run/arms/uniform/seed-0", "exported", "clouds.safetensors", "work.json")
    assert after.returncode == 0, after.stderr
    return folder, folder / "run", after.stdout


def facts(done):
    return json.loads(done[2].splitlines()[-1])


def test_preset_and_schedules_make_the_arms(done):
    _, run, _ = done
    settings = records.read_json(run / "settings.json")["settings"]
    assert settings["preset"] == "femto" and settings["arms"] == ARMS
    widths = {arm: records.read_json(run / "schedules" / f"{arm}.json")["widths"] for arm in ARMS}
    assert widths["steps:rise=3"] == [12, 36] and widths["reversed-steps:rise=3"] == [36, 12]
    work = records.read_json(run / "work.json")["work"]
    assert np.argsort(widths[ARMS[4]]).tolist() == np.argsort(work["city"]["growth"]).tolist()
    source = records.read_json(run / "schedules" / f"{ARMS[5]}.json")["details"]["source_widths"]
    assert widths[ARMS[5]] == source[::-1]
    comparison = records.read_json(run / "comparison.json")
    assert sorted(arm["arm"] for arm in comparison["arms"]) == sorted(ARMS)
    assert all(arm["tokens"] == 4 * 4 * 16 for arm in comparison["arms"])
    assert "steps " in done[2] and "in_proportion " in done[2]  # geowidth allocate --list


def test_geometry_and_statistics_are_measured(done):
    folder, run, _ = done
    work = records.read_json(run / "work.json")["work"]
    assert list(work) == ["raw", "spherical", "hyperbolic", "city"]
    assert list(work["city"]) == ["shift", "gw", "topology", "reach", "growth"]
    assert "growth" not in work["spherical"] and "reach" in work["spherical"]
    clouds, again = Clouds.read(folder / "clouds.safetensors"), records.read_json(folder / "work.json")["work"]
    for name, metric in (("city", "cityblock"), ("raw", "euclidean")):
        for layer in range(clouds.layers):
            before, after = (
                cdist(x, x, metric) for x in (side[layer].double().numpy() for side in (clouds.before, clouds.after))
            )
            assert again[name]["reach"][layer] == pytest.approx(after.max(), rel=1e-12)
            assert again[name]["growth"][layer] == pytest.approx(abs(after.mean() - before.mean()), rel=1e-9)
    assert work["city"]["reach"] == pytest.approx(again["city"]["reach"], rel=1e-12)


def test_the_backend_served_every_diagram(done):
    notes = (done[0] / "notes.txt").read_text().split()
    assert notes.count("counted") >= 2 * 2 * 3 and "reach" in notes  # sides, layers, raw and city and angles


def test_the_place_was_asked(done):
    assert "trained-well" in (done[0] / "notes.txt").read_text()


def test_the_family_is_captured(done):
    found = facts(done)
    assert found["family"] == "toy" and found["widths"] == [5, 9] and min(found["shift"]) > 0


def test_the_rule_for_widths_is_asked(done):
    widths, before = facts(done)["sliced"]
    assert sum(widths) == 24 and widths == before[::-1]


def test_the_format_is_written(done):
    from safetensors.torch import load_file

    folder, run, _ = done
    lines = (folder / "exported" / "sums.txt").read_text().splitlines()
    sums = dict(line.rsplit(" ", 1) for line in lines)
    own = load_file(run / "arms" / "uniform" / "seed-0" / "model.safetensors")
    assert float(sums["model.embed_tokens.weight"]) in [float(tensor.double().sum()) for tensor in own.values()]
    assert records.read_json(folder / "exported" / "geowidth_export.json")["format"] == "sums"


def test_the_section_stands_on_the_page_before_the_settings(done):
    page = (done[1] / "report.html").read_text(encoding="utf-8")
    assert "<p>6 arms</p>" in page
    places = [page.index(f'id="{name}"') for name in ("work", "widths", "loss", "evidence", "outside", "settings")]
    assert places == sorted(places) and "reach, city" in page and "blocks" in page


def test_what_a_seam_cannot_do_is_refused_by_name(done):
    found = facts(done)
    assert "cannot serve pairwise_distances" in found["native"] and "city" in found["native"]
    assert "'growth' is defined in none of spherical" in found["statistic"]
    assert "format sums needs weights" in found["format"] and not (done[0] / "never").exists()


def test_a_broken_extension_is_named(tmp_path):
    (tmp_path / "broken_extension.py").write_text("import nothing_of_that_name\n")
    done = subprocess.run(
        [sys.executable, "-m", "geowidth", "run", "--preset", "pico"], capture_output=True, text=True, cwd=tmp_path,
        env=environment(tmp_path) | {"GEOWIDTH_EXTENSIONS": "broken_extension"},
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "extension 'broken_extension'" in done.stderr
