"""Neighbours of the cases: inputs of the same kinds, found by trying what stands beside them."""

import math
from argparse import Namespace

import numpy as np
import pytest
import torch

from geowidth import memory
from geowidth.chain import resolve
from geowidth.cli import gromov as gromov_command
from geowidth.diagnose.calibration_design import CalibrationDesign
from geowidth.errors import UserError
from geowidth.geometry import GEOMETRIES, paired_distances, poincare_distance, reference_distances
from geowidth.measure import Clouds, MeasureSettings, measure_clouds
from geowidth.models.presets import preset_named
from geowidth.text.sequences import sequences_of
from geowidth.train import train


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clouds_of(before, after):
    count = torch.arange(before.shape[1])
    return Clouds(before, after, count, count, widths=(8,) * len(before), projections=3, settings={})


@pytest.mark.parametrize("exponent", [-1000, -700, 700, 1000])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_A5_distances_scale_with_points_whose_squares_overflow_or_vanish(geometry, exponent):
    x, y = draw(5, 7), draw(5, 7, seed=1)
    scale = 2.0**exponent
    for distances in (paired_distances, lambda *pair, geometry: reference_distances(*pair, geometry=geometry)):
        expected = distances(x, y, geometry=geometry) * (scale if geometry == "raw" else 1)
        torch.testing.assert_close(distances(x * scale, y * scale, geometry=geometry), expected, rtol=1e-14, atol=0)


def test_A5_points_of_the_ball_closer_than_the_root_of_the_smallest_number():
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[3e-200, 4e-200]], dtype=torch.float64)
    assert poincare_distance(x, y).item() == pytest.approx(1e-199, rel=1e-14)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_A4_slopes_at_distance_zero_are_finite(geometry):
    x = draw(3, 4).requires_grad_()
    paired_distances(x, x.detach().clone(), geometry=geometry).sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("exponent", [-1000, -700, 700, 1000])
def test_A5_work_of_states_whose_squares_overflow_or_vanish(exponent):
    before = draw(1, 40, 5)
    before[:, 30:] = before[:, :10]
    after = before + draw(1, 40, 5, seed=1) / 2
    settings = MeasureSettings(neighbours=10, statistics=("shift", "topology"))
    plain = measure_clouds(clouds_of(before, after), settings)
    scaled = measure_clouds(clouds_of(before * 2.0**exponent, after * 2.0**exponent), settings)
    for geometry, statistics in plain.work.items():
        size = 2.0**exponent if geometry == "raw" else 1.0
        for name, values in statistics.items():
            np.testing.assert_allclose(np.array(scaled.work[geometry][name]) / size, values, rtol=1e-9)
    assert scaled.details[0]["dimension"] == plain.details[0]["dimension"]
    assert scaled.dimension["mle"] == pytest.approx(plain.dimension["mle"], rel=1e-9)


def test_A9_clouds_without_a_layer_are_refused():
    with pytest.raises(UserError, match="no layer"):
        measure_clouds(clouds_of(draw(0, 30, 5), draw(0, 30, 5)))


def test_E3_an_additive_mask_is_refused_where_it_was_read_the_other_way_round():
    ids = torch.arange(10).view(2, 5)
    mask = torch.tensor([[0.0, 0, 0, -1e9, -1e9], [0.0, 0, 0, 0, 0]])
    with pytest.raises(UserError, match=r"mask\[0, 3\] is -1.*1 for a token, 0 for padding"):
        sequences_of(ids, mask)
    for wrong in (mask * math.inf, torch.full((2, 5), 2), torch.full((2, 5), -1)):
        with pytest.raises(UserError, match=r"mask\[0, 0\]"):
            sequences_of(ids, wrong)
    kept = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    for right in (kept, kept.bool(), kept.float(), kept.numpy()):
        assert [len(row) for row in sequences_of(ids, right)] == [3, 5]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"entropic": False, "eps_rel": 0.01}, "--eps-rel belongs to the entropic problem"),
        ({"entropic": False, "eps": 1.0}, "--eps belongs to the entropic problem"),
        ({"entropic": True, "eps": 1.0, "eps_rel": 0.1}, "give one of them"),
    ],
)
def test_G2_gromov_ignores_no_flag(given, words):
    arguments = Namespace(
        **{"c1": "a.npy", "c2": "b.npy", "eps": None, "eps_rel": None, "out": None, "coupling": None} | given
    )
    with pytest.raises(UserError, match=words):
        gromov_command.run(arguments)


@pytest.mark.parametrize("seed", [10**18, 2**63, 10**20])
def test_G2_a_seed_that_records_cannot_hold_is_refused_before_any_training(tmp_path, seed):
    with pytest.raises(UserError, match="seed is 1|seed is 9"):
        train("pico", seed=seed, out=tmp_path / "training", steps=1)
    with pytest.raises(UserError, match="whole numbers from 0 to 9007199254740991"):
        resolve("pico", seeds=[0, seed])
    with pytest.raises(UserError, match="whole numbers from 0 to 9007199254740991"):
        CalibrationDesign(preset_named("pico"), seeds=(0, seed))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 10**20}, "batch is 10"),
        ({"batch": 2**31 - 1}, "a batch of 2147483647 sequences takes"),
        ({"batch": 10**7, "microbatch": 10**7}, "a microbatch of 10000000 sequences takes"),
        ({"steps": 10**20}, "steps is 10"),
    ],
)
def test_H8_a_batch_beyond_the_memory_is_refused(tmp_path, monkeypatch, changes, words):
    monkeypatch.setattr(memory, "available", lambda: 2**35)
    with pytest.raises(UserError, match=words):
        train("pico", out=tmp_path / "training", **changes)
    assert not list(tmp_path.iterdir())
