"""From clouds to a work profile: what must hold for any model, resumption, and what is refused."""

import math

import pytest
import torch

from geowidth import records
from geowidth.cli.measure import table
from geowidth.errors import UserError
from geowidth.geometry import HYPERBOLIC_RADIUS
from geowidth.measure import Clouds, WorkProfile, measure_clouds, pipeline
from geowidth.measure.pipeline import MeasureSettings
from geowidth.measure.statistics import large_norm_tokens
from geowidth.tensors import read_tensors, write_tensors


def make_clouds(layers=3, tokens=31, dimension=7, step=0.4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    before = torch.randn(layers, tokens, dimension, generator=generator)
    after = before + step * torch.randn(layers, tokens, dimension, generator=generator)
    ids = torch.arange(tokens)
    return Clouds(before, after, ids, ids, (16,) * layers, 3, {"made": "by a test"})


def changed(clouds, function):
    """The same clouds with `function` applied to both sides."""
    sides = (function(clouds.before), function(clouds.after))
    return Clouds(*sides, clouds.token_ids, clouds.positions, clouds.widths, 3, {"made": "by a test"})


def signals(profile):
    return {(g, s): profile.signal(s, g) for g in profile.work for s in profile.work[g]}


def assert_close(left, right, relative=1e-6):
    for key, values in left.items():
        assert values == pytest.approx(right[key], rel=relative, abs=1e-9), key


def test_a_layer_that_does_nothing_does_no_work():
    clouds = make_clouds(step=0.0)
    profile = measure_clouds(clouds)
    assert len(signals(profile)) == 9
    assert all(value == 0 for values in signals(profile).values() for value in values)


def test_the_order_of_tokens_changes_nothing():
    clouds = make_clouds()
    order = torch.randperm(clouds.tokens, generator=torch.Generator().manual_seed(5))
    assert_close(signals(measure_clouds(changed(clouds, lambda x: x[:, order]))), signals(measure_clouds(clouds)))


def test_rotating_the_residual_stream_changes_nothing():
    clouds = make_clouds()
    rotation = torch.linalg.qr(torch.randn(7, 7, generator=torch.Generator().manual_seed(6), dtype=torch.float64))[0]
    plain = changed(clouds, lambda x: x.double())
    assert_close(signals(measure_clouds(changed(plain, lambda x: x @ rotation))), signals(measure_clouds(plain)))


def test_scaling_the_stream_scales_raw_work_and_leaves_angles():
    clouds = make_clouds()
    plain, scaled = (signals(measure_clouds(c)) for c in (clouds, changed(clouds, lambda x: 4 * x)))
    for (geometry, statistic), values in plain.items():
        factor = 4 if geometry == "raw" else 1
        expected = [factor * value for value in values]
        assert scaled[geometry, statistic] == pytest.approx(expected, rel=1e-9), (geometry, statistic)


def test_a_translation_is_shift_without_distortion():
    """Adding one vector to all tokens moves them by its length and keeps every raw distance."""
    before = torch.randn(1, 40, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    vector = torch.tensor([3.0, 0.0, 4.0, 0.0, 0.0], dtype=torch.float64)
    ids = torch.arange(40)
    profile = measure_clouds(
        Clouds(before, before + vector, ids, ids, (8,), 3, {}), MeasureSettings(geometries=("raw",))
    )
    assert profile.signal("shift", "raw") == pytest.approx([5.0], rel=1e-12)
    assert profile.signal("gw", "raw") == pytest.approx([0.0], abs=1e-12)
    assert profile.signal("topology", "raw") == pytest.approx([0.0], abs=1e-12)


def test_statistics_agree_with_plain_formulas():
    clouds = make_clouds(layers=1)
    profile = measure_clouds(clouds)
    before, after = clouds.before[0].double(), clouds.after[0].double()
    assert profile.signal("shift", "raw")[0] == pytest.approx((before - after).norm(dim=1).mean().item(), rel=1e-9)
    angle = torch.arccos((before / before.norm(dim=1, keepdim=True) * after / after.norm(dim=1, keepdim=True)).sum(1))
    assert profile.signal("shift", "spherical")[0] == pytest.approx(angle.mean().item(), rel=1e-9)
    radius = HYPERBOLIC_RADIUS
    chord = 2 * torch.sin(angle / 2)
    hyperbolic = 2 * torch.asinh(radius * chord / (1 - radius**2))
    assert profile.signal("shift", "hyperbolic")[0] == pytest.approx(hyperbolic.mean().item(), rel=1e-9)
    facts = profile.details[0]["raw"]["gw"]
    identity = ((torch.cdist(before, before) - torch.cdist(after, after)) ** 2).mean().item()
    assert facts["identity"] == pytest.approx(identity, rel=1e-9)
    assert 0 <= facts["lower"] <= facts["value"] <= facts["identity"]
    assert facts["scale"] + facts["eccentricity"] + facts["shape"] == pytest.approx(facts["value"], rel=1e-9)
    assert profile.signal("gw", "raw")[0] == pytest.approx(math.sqrt(facts["value"]), rel=1e-12)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(threads):
    clouds = make_clouds(layers=4)
    assert signals(measure_clouds(clouds, threads=threads)) == signals(measure_clouds(clouds, threads=1))


def test_an_interrupted_measurement_goes_on(tmp_path, monkeypatch):
    clouds, out = make_clouds(layers=4), tmp_path / "work.json"
    whole = measure_clouds(clouds)
    real, measured = pipeline.measure_layer, []

    def breaks_at_layer_2(clouds, layer, settings, threads=1):
        if layer == 2 and 2 not in measured:
            measured.append(2)
            raise KeyboardInterrupt
        measured.append(layer)
        return real(clouds, layer, settings, threads)

    monkeypatch.setattr(pipeline, "measure_layer", breaks_at_layer_2)
    with pytest.raises(KeyboardInterrupt):
        measure_clouds(clouds, out=out, threads=1)
    assert not out.exists()
    measured[:] = [2]
    resumed = measure_clouds(clouds, out=out, threads=1)
    assert measured == [2, 2, 3]
    assert resumed.work == whole.work and resumed.dimension == whole.dimension and resumed.details == whole.details
    assert [p.name for p in tmp_path.iterdir()] == ["work.json"]
    assert WorkProfile.read(out).work == whole.work


def test_layers_kept_for_other_clouds_are_not_used(tmp_path, monkeypatch):
    out = tmp_path / "work.json"
    first, second = make_clouds(seed=1), make_clouds(seed=2)
    real = pipeline.measure_layer

    def breaks_at_the_end(clouds, layer, settings, threads=1):
        if layer == clouds.layers - 1:
            raise KeyboardInterrupt
        return real(clouds, layer, settings, threads)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pipeline, "measure_layer", breaks_at_the_end)
        measure_clouds(first, out=out, threads=1)
    assert measure_clouds(second, out=out).work == measure_clouds(second).work


def test_bands_hold_subsample_quantiles():
    clouds = make_clouds(layers=2, tokens=40)
    profile = measure_clouds(clouds, MeasureSettings(bootstrap=5))
    for detail in profile.details:
        bands = detail["bands"]
        assert bands["subsample"] == 20 and bands["subsamples"] == 5
        low, high = bands["raw"]["shift"]
        assert 0 < low <= high
    assert measure_clouds(clouds, MeasureSettings(bootstrap=5)).details == profile.details


def test_some_signals_only():
    settings = MeasureSettings(geometries=("hyperbolic",), statistics=("topology",))
    profile = measure_clouds(make_clouds(), settings)
    assert signals(profile).keys() == {("hyperbolic", "topology")}
    # One persistence run serves spherical and hyperbolic: the diagrams are mapped, the numbers the same.
    both = measure_clouds(make_clouds())
    assert profile.signal("topology", "hyperbolic") == pytest.approx(both.signal("topology", "hyperbolic"), rel=1e-6)
    with pytest.raises(UserError, match="allowed: hyperbolic"):
        profile.signal("topology", "raw")


def test_the_entropic_signal_is_measured_when_asked_for():
    settings = MeasureSettings(geometries=("raw",), statistics=("gw", "gw_entropic"))
    profile = measure_clouds(make_clouds(layers=2), settings)
    for layer in range(2):
        facts = profile.details[layer]["raw"]["gw_entropic"]
        assert facts["eps_rel"] == pytest.approx(0.1) and facts["converged"] and facts["marginal_error"] < 1e-3
        assert profile.signal("gw_entropic", "raw")[layer] == pytest.approx(math.sqrt(facts["value"]))
        # Its plan is a coupling like any other, so its value is no less than the lower bound.
        assert facts["value"] >= profile.details[layer]["raw"]["gw"]["lower"]


def test_repeated_states_are_counted():
    clouds = make_clouds(layers=1, tokens=30)
    clouds = changed(clouds, lambda x: torch.cat([x, x[:, :4]], dim=1))
    profile = measure_clouds(clouds)
    assert profile.details[0]["dimension"]["merged"] == 4


def test_zero_states_are_refused_by_layer_and_row():
    clouds = make_clouds()
    clouds.before[1, 6] = 0
    with pytest.raises(UserError, match=r"layer 1: .*row 6"):
        measure_clouds(clouds)


@pytest.mark.parametrize(
    "bad",
    [
        {"geometries": ("flat",)},
        {"statistics": ("mass",)},
        {"radius": 1.0},
        {"radius": float("nan")},
        {"neighbours": 2},
        {"bootstrap": -1},
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(UserError):
        MeasureSettings(**bad)


def test_a_small_cloud_with_repeated_states_has_fewer_neighbours():
    clouds = changed(make_clouds(layers=1, tokens=18), lambda x: torch.cat([x, x[:, :4]], dim=1))
    facts = measure_clouds(clouds, MeasureSettings(neighbours=20)).details[0]["dimension"]
    assert facts["k"] == 17 and facts["merged"] == 4


def test_layers_with_outliers_are_told_apart_in_the_table():
    clouds = make_clouds()
    clouds.before[1, 6] *= 100
    lines = table(measure_clouds(clouds, MeasureSettings(statistics=("shift",)))).splitlines()
    assert lines[-1].startswith("layer 1, raw without 1 token of very large norm: shift ")
    assert not any("layer 0, raw" in line for line in lines)


def test_large_norm_tokens_are_flagged():
    cloud = torch.ones(9, 3)
    cloud[4] *= 5.1
    cloud[7] *= 4.9
    assert large_norm_tokens(cloud) == [4]
    assert large_norm_tokens(cloud[:0]) == []


def test_clouds_and_profiles_read_back(tmp_path):
    clouds = make_clouds()
    clouds.write(tmp_path / "c.safetensors")
    back = Clouds.read(tmp_path / "c.safetensors")
    assert torch.equal(back.before, clouds.before) and torch.equal(back.positions, clouds.positions)
    assert (back.widths, back.projections, back.settings) == (clouds.widths, clouds.projections, clouds.settings)
    profile = measure_clouds(back)
    profile.write(tmp_path / "w.json")
    again = WorkProfile.read(tmp_path / "w.json")
    assert again.work == profile.work and again.widths == profile.widths
    record = records.read_json(tmp_path / "w.json")
    record["work"]["raw"]["shift"].pop()
    records.write_json(tmp_path / "w.json", record)
    with pytest.raises(UserError, match="shift raw has 2 layers, widths has 3"):
        WorkProfile.read(tmp_path / "w.json")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        Clouds.read(tmp_path / "junk.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metadata": None}, "holds no GeoWidth clouds"),
        ({"metadata": {"geowidth": "{"}}, "holds no GeoWidth clouds"),
        ({"metadata": {"geowidth": '{"kind": "geowidth.clouds", "schema": 1}'}}, "holds no GeoWidth clouds"),
        ({"extra": torch.ones(2)}, "holds no GeoWidth clouds"),
        ({"after": torch.ones(3, 30, 7)}, "do not fit each other"),
        ({"positions": torch.ones(30)}, "do not fit each other"),
        ({"before": torch.full((3, 31, 7), torch.nan)}, "states before the FFN are no finite numbers"),
    ],
)
def test_damaged_clouds_are_refused(tmp_path, change, words):
    path = tmp_path / "c.safetensors"
    make_clouds().write(path)
    tensors, metadata = read_tensors(path)
    metadata = change.pop("metadata", metadata) or {}
    write_tensors(path, tensors | change, metadata)
    with pytest.raises(UserError, match=f"c.safetensors.* {words}"):
        Clouds.read(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"widths": None}, "not made of lists"),
        ({"work": []}, "work is .*needed: an object"),
        ({"work": {"raw": {"shift": None}}}, "not made of lists"),
        ({"work": {"raw": {"shift": ["much", 1.0]}}}, "shift raw holds 'much'"),
        ({"dimension": {"twonn_mle": [3.0]}}, "dimension twonn_mle has 1 layers, widths has 2"),
        ({"widths": [True, 8]}, "widths holds True"),
        ({"widths": [8.5, 8]}, "a width is 8.5; allowed: whole numbers"),
        ({"widths": [], "work": {"raw": {"shift": []}}}, "it holds no layer"),
        ({"model_dimension": "4"}, "model_dimension is '4'"),
        ({"projections": 1}, "projections is 1"),
    ],
)
def test_damaged_profiles_are_refused_with_their_path(tmp_path, change, words):
    path = tmp_path / "work.json"
    good = {"work": {"raw": {"shift": [1.0, 2.0]}}, "dimension": {}, "widths": [8, 8], "model_dimension": 4}
    good |= {"kind": "geowidth.work", "schema": 1, "projections": 3, "details": [], "settings": {}, "environment": {}}
    records.write_json(path, good)
    assert WorkProfile.read(path).signal("shift", "raw") == [1.0, 2.0]
    records.write_json(path, good | change)
    with pytest.raises(UserError, match=f"work.json: .*{words}"):
        WorkProfile.read(path)
