"""Statistics that a module outside the package adds: on the device and on the host, alone and overlapping."""

import numpy as np
import pytest
import torch
from test_overlap import SlowTransfer
from test_pipeline import make_clouds

from geowidth.errors import UserError
from geowidth.geometry import GEOMETRIES, Geometry
from geowidth.measure import MeasureSettings, measure_clouds, pipeline
from geowidth.measure.layers import part_bytes, sent_matrices
from geowidth.measure.statistics import STATISTICS, Statistic


def stretch(cloud, geometry):
    before, after = cloud.distances[geometry]
    return (after.mean() / before.mean()), {"points": len(before)}


def host_stretch(cloud, geometry):
    before, after = (np.asarray(matrix) for matrix in cloud.on_host(geometry))
    return after.mean() / before.mean(), {}


def spread(cloud, geometry):
    return np.asarray(cloud.on_host(geometry)[0]).max(), {}


def bars(cloud, geometry):
    return len(cloud.diagrams(geometry)[0]), {}


def norm(cloud, geometry):
    before, after = cloud.states_on_host()
    return after.double().norm() - before.double().norm(), {}


MINE = [
    Statistic("stretch", stretch),
    Statistic("host_stretch", host_stretch, place="host", reads=("distances",)),
    Statistic("spread", spread, place="host", reads=("distances",), sides=1, geometries=("raw", "hyperbolic")),
    Statistic("bars", bars, place="host", reads="diagrams", sides=1),
    Statistic("norm", norm, place="host", reads=("states",), geometries=["raw"], revision=3),
]


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for table in (STATISTICS, GEOMETRIES):
        monkeypatch.setattr(table, "_items", dict(table._items))
    for statistic in MINE:
        STATISTICS.register(statistic)


@pytest.fixture(params=["side by side", "overlapping"])
def measured(request, monkeypatch):
    """measure_clouds on the CPU, and as on a GPU with slow transfers."""
    if request.param == "overlapping":
        real = pipeline._overlapping
        monkeypatch.setattr(pipeline, "_side_by_side", lambda *given: real(*given, transfer=SlowTransfer))
    return measure_clouds


def test_every_place_gives_its_numbers(measured):
    clouds = make_clouds(layers=2)
    names = tuple(statistic.name for statistic in MINE) + ("topology", "shift")
    profile = measured(clouds, MeasureSettings(statistics=names, bootstrap=2))
    assert list(profile.work["raw"]) == list(names)
    assert "spread" not in profile.work["spherical"] and "norm" not in profile.work["hyperbolic"]
    assert profile.signal("stretch", "raw") == pytest.approx(profile.signal("host_stretch", "raw"), rel=1e-14)
    for layer in range(2):
        before, after = (side[layer].double() for side in (clouds.before, clouds.after))
        assert profile.signal("spread", "raw")[layer] == pytest.approx(float(torch.cdist(before, before).max()))
        assert profile.signal("norm", "raw")[layer] == pytest.approx(float(after.norm() - before.norm()))
        assert profile.details[layer]["raw"]["stretch"] == {"points": clouds.tokens}
        for geometry in profile.work:
            counted = profile.details[layer][geometry]["topology"]["bars_before"]
            assert profile.signal("bars", geometry)[layer] == counted
        assert set(profile.details[layer]["bands"]["spherical"]) == set(profile.work["spherical"])
    assert profile.settings["revisions"]["norm"] == 3 and profile.settings["revisions"]["stretch"] == 1


def test_transfers_follow_from_what_is_read():
    def sent(*statistics, geometries=("raw", "spherical", "hyperbolic"), role="draw"):
        settings = MeasureSettings(statistics=statistics, geometries=geometries)
        return sent_matrices(settings, role, geometries)

    assert sent("stretch", "shift") == {}
    assert sent("host_stretch") == {"raw": 2, "spherical": 2, "hyperbolic": 2}
    assert sent("spread") == {"raw": 1, "hyperbolic": 1}
    assert sent("bars") == {"raw": 1, "spherical": 1}
    assert sent("bars", "topology", geometries=("hyperbolic", "raw")) == {"hyperbolic": 2, "raw": 2}
    assert sent("norm", role="whole") == {"raw": 1}
    states = part_bytes(100, MeasureSettings(statistics=("norm",)), 16)
    assert states == part_bytes(100, MeasureSettings(statistics=("stretch",)), 16) + 2 * 8 * 100 * 16


def test_a_host_statistic_that_reads_more_than_it_declares_is_refused(measured):
    wrong = {
        "late": lambda cloud, geometry: (cloud.distances[geometry][0].mean(), {}),
        "moving": lambda cloud, geometry: (cloud.moved(geometry).mean(), {}),
        "undeclared": lambda cloud, geometry: (cloud.states_on_host()[0].mean(), {}),
    }
    words = {"late": "reads cloud.on_host", "moving": "place 'device'", "undeclared": r"reads=\('states',\)"}
    for name, function in wrong.items():
        STATISTICS.register(Statistic(name, function, place="host", reads=("distances",)))
        with pytest.raises(UserError, match=f"layer 0: .*{words[name]}"):
            measured(make_clouds(layers=1), MeasureSettings(statistics=(name,)))


@pytest.mark.parametrize("result", [None, 3.0, (1.0,), ("much", {}), (1.0, 2.0), (torch.ones(3), {})])
def test_what_is_not_a_number_and_details_is_refused(result):
    STATISTICS.register(Statistic("odd", lambda cloud, geometry: result))
    with pytest.raises(UserError, match="layer 0: statistic 'odd' gave .*; needed: "):
        measure_clouds(make_clouds(layers=1), MeasureSettings(statistics=("odd",)))


def test_declarations_are_checked():
    for given, words in (
        ({"place": "gpu"}, "the place of statistic 'x' is 'gpu'; allowed: device, host"),
        ({"place": "host"}, "reads of statistic 'x' is"),
        ({"place": "host", "reads": "matrices"}, "reads of statistic 'x' is 'matrices'; allowed: distances"),
        ({"reads": ("distances",)}, "leave it out"),
        ({"sides": 3}, "sides of statistic 'x' is 3"),
        ({"revision": 0}, "revision of statistic 'x' is 0"),
    ):
        with pytest.raises(UserError, match=words):
            Statistic("x", stretch, **given)
    with pytest.raises(UserError, match="'norm' is defined in none of spherical; it is in: raw"):
        MeasureSettings(statistics=("norm",), geometries=("spherical",))
    with pytest.raises(UserError, match="statistic is 'nothing'; allowed: shift, gw, topology, gw_entropic, stretch"):
        MeasureSettings(statistics=("nothing",))


@pytest.mark.parametrize("statistics", [("shift", "gw", "topology"), ("topology", "host_stretch", "bars")])
def test_another_geometry_is_measured_beside_the_built_in_ones(measured, statistics):
    GEOMETRIES.register(Geometry("chord", True, "length", from_angle=lambda angle, _: 2 * torch.sin(angle / 2)))
    GEOMETRIES.register(Geometry("manhattan", False, "length", lambda x, y, _: (x[:, None] - y).abs().sum(-1)))
    clouds = make_clouds(layers=2)
    clouds.before[1, 5] *= 40
    alone = measured(clouds, MeasureSettings(statistics=statistics))
    mixed = measured(
        clouds, MeasureSettings(statistics=statistics, geometries=("raw", "chord", "spherical", "manhattan"))
    )
    assert mixed.work["raw"] == alone.work["raw"] and mixed.work["spherical"] == alone.work["spherical"]
    assert mixed.raw_without_large_norms == alone.raw_without_large_norms
    own = measured(clouds, MeasureSettings(statistics=statistics, geometries=("chord", "manhattan")))
    for name in mixed.work["chord"]:
        assert mixed.work["chord"][name] == pytest.approx(own.work["chord"][name], rel=1e-9, abs=1e-12), name
        assert mixed.work["manhattan"][name] == own.work["manhattan"][name]
    if "shift" in statistics:
        before, after = (side[0].double() for side in (clouds.before, clouds.after))
        units = [side / side.norm(dim=1, keepdim=True) for side in (before, after)]
        assert own.signal("shift", "chord")[0] == pytest.approx(float((units[0] - units[1]).norm(dim=1).mean()))
        assert own.signal("shift", "manhattan")[0] == pytest.approx(float((before - after).abs().sum(1).mean()))
