"""Evidence: power, permutation p, what a calibration explains, repeats at the precision of the states, units."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from geowidth.measure import intrinsic_dimension
from geowidth.measure.clouds import Clouds
from geowidth.measure.pipeline import MeasureSettings, measure_clouds
from geowidth.ops import pairwise_distances


def repeated(dtype=torch.float32, offset=0.0, ulp=True):
    """(240, 8) states whose rows 200 to 239 are rows 0 to 39, moved by one unit in the last place or not."""
    points = np.random.default_rng(0).standard_normal((240, 8)).astype(np.float32) + np.float32(offset)
    states = torch.from_numpy(points).to(dtype)
    states[200:] = states[:40]
    if ulp:
        states[200:] = torch.nextafter(states[200:], torch.full_like(states[200:], math.inf))
    return states


def cloud(states, **fields):
    """One layer of these states, which the FFN moves a little."""
    ids = torch.arange(len(states))
    after = states + (0.1 * torch.sin(3 * states.double())).to(states.dtype)
    return Clouds(states[None], after[None], ids, ids, (16,), 3, {"made": "by a test"}, **fields)


def dimension(clouds, geometry="raw"):
    """(TwoNN, how many states were merged) by the pipeline."""
    profile = measure_clouds(clouds, MeasureSettings(geometries=(geometry,), statistics=("shift",)))
    return profile.dimension["twonn_mle"][0], profile.details[0]["dimension"]["merged"]


@pytest.mark.parametrize("ulp", [False, True])
def test_N29_M6_float32_repeats_are_merged_in_the_pipeline_and_the_op(ulp):
    states = repeated(ulp=ulp)
    assert dimension(cloud(states)) == (pytest.approx(7.456, abs=0.01), 40)
    op = intrinsic_dimension(pairwise_distances(states))
    assert (op.values["twonn_mle"], op.merged) == (pytest.approx(7.456, abs=0.01), 40)


@pytest.mark.parametrize("geometry", ["raw", "spherical", "hyperbolic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_N29_repeats_are_merged_at_the_precision_of_the_states(dtype, geometry):
    moved, exact = dimension(cloud(repeated(dtype)), geometry), dimension(cloud(repeated(dtype, ulp=False)), geometry)
    assert moved == (pytest.approx(exact[0], rel=1e-3), 40) and exact[1] == 40


def test_N29_clouds_remember_the_precision_in_which_states_were_produced(tmp_path):
    narrow = cloud(repeated(torch.bfloat16))
    wide = dataclasses.replace(narrow, before=narrow.before.double(), after=narrow.after.double())
    assert narrow.precision == wide.precision == "bfloat16"
    assert dimension(wide) == dimension(narrow) and dimension(wide)[1] == 40
    wide.write(tmp_path / "wide.safetensors")
    found = Clouds.read(tmp_path / "wide.safetensors")
    assert found.precision == "bfloat16" and dimension(found) == dimension(narrow)
    unknown = dataclasses.replace(wide, precision=None)
    assert unknown.precision == "float64" and dimension(unknown)[1] == 0


def test_N29_rows_far_from_the_origin_have_large_last_places():
    far, near = dimension(cloud(repeated(offset=1000.0))), dimension(cloud(repeated(offset=1000.0, ulp=False)))
    assert far == (pytest.approx(near[0], rel=1e-3), 40) and near[1] == 40


def test_N29_distinct_states_beside_a_very_large_one_are_kept():
    states = repeated(torch.bfloat16)
    states[100] = 1e4
    assert dimension(cloud(states))[1] == 40  # a last place of the largest distance would merge all others


@pytest.mark.parametrize("geometry", ["raw", "spherical", "hyperbolic"])
def test_N29_repeats_add_no_bars(geometry):
    def measured(states):
        settings = MeasureSettings(geometries=(geometry,))
        profile = measure_clouds(cloud(states), settings)
        return profile.work[geometry]["topology"][0], profile.details[0][geometry]["topology"]

    (moved, facts), (exact, wanted), (once, alone) = map(measured, (repeated(), repeated(ulp=False), repeated()[:200]))
    assert facts["merged_before"] == wanted["merged_before"] == 40 and alone["merged_before"] == 0
    assert facts["bars_before"] == wanted["bars_before"] == alone["bars_before"]
    assert exact == once and moved == pytest.approx(exact, rel=1e-4)


def test_N29_capture_notes_the_coarsest_state():
    from geowidth.measure.capture import capture
    from geowidth.models.transformer import ModelConfig, TaperedTransformer

    config = ModelConfig(vocabulary=256, layers=2, dimension=16, heads=2, widths=(16,) * 2, context=16)
    model, ids = TaperedTransformer(config), torch.randint(0, 256, (200,), generator=torch.Generator().manual_seed(0))
    assert capture(model, ids, 20).precision == "float32"
    with torch.autocast("cpu", torch.bfloat16):
        assert capture(model, ids, 20).precision == "bfloat16"
    assert capture(model.bfloat16(), ids, 20).precision == "bfloat16"


@pytest.mark.parametrize("dtype", ["float16", ">f4", "float32"])
def test_N29_the_op_goes_by_the_type_the_matrix_came_in(dtype):
    points = np.random.default_rng(0).standard_normal((60, 8))
    matrix = np.linalg.norm(points[:, None] - points[None], axis=-1)
    matrix[3, 7] = matrix[7, 3] = 2 * np.finfo(dtype).eps * matrix.max()
    assert intrinsic_dimension(matrix).merged == 0
    assert intrinsic_dimension(matrix.astype(dtype)).merged == 1


def test_N29_a_bfloat16_matrix_has_the_last_places_of_bfloat16():
    matrix = torch.ones(30, 30).fill_diagonal_(0)
    matrix[3, 7] = matrix[7, 3] = 2 * torch.finfo(torch.bfloat16).eps
    assert [intrinsic_dimension(matrix.to(t), k=5).merged for t in (torch.float32, torch.bfloat16)] == [0, 1]
