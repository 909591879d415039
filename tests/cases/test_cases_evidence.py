"""Evidence: power, permutation p, what a calibration explains, repeats at the precision of the states, units."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from geowidth import cli
from geowidth.artifacts.clouds import Clouds
from geowidth.diagnose.association import partial_spearman
from geowidth.errors import UserError
from geowidth.measure import intrinsic_dimension
from geowidth.measure.pipeline import MeasureSettings, measure_clouds
from geowidth.ops import pairwise_distances
from geowidth.train.evidence import compare_arms, paired_difference, seeds_for_power, t_power


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
    from geowidth.measure import capture
    from geowidth.models.config import ModelConfig
    from geowidth.models.transformer import TaperedTransformer

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


def power_over_chi(n, ratio, confidence):
    """Power by quadrature over S = chi / sqrt(n - 1): E Phi(shift - c S) + Phi(-shift - c S)."""
    freedom, shift = n - 1, ratio * math.sqrt(n)
    critical = stats.t.isf((1 - confidence) / 2, freedom)
    density = stats.chi(freedom, scale=1 / math.sqrt(freedom)).pdf

    def inside(s):
        return density(s) * (special.ndtr(shift - critical * s) + special.ndtr(-shift - critical * s))

    turns = [(shift + k) / critical for k in (-9, -4, -1, 0, 1, 4, 9)]
    spread = [stats.chi2.isf(q, freedom) for q in (1e-15, 1e-6, 0.1, 0.5, 0.9, 1 - 1e-6)]
    edges = sorted({0.0, *(t for t in turns if t > 0), *(math.sqrt(q / freedom) for q in spread)})
    parts = [integrate.quad(inside, *pair, epsabs=1e-12, limit=200)[0] for pair in zip(edges, edges[1:], strict=False)]
    return math.fsum(parts)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 25, 200, 1000])
@pytest.mark.parametrize("confidence", [0.1, 0.8, 0.95, 0.9999])
def test_M2_power_agrees_with_an_integral_over_the_spread(n, confidence):
    critical = stats.t.isf((1 - confidence) / 2, n - 1)
    ratios = [1e-6, 0.1, 1.0, 10.0, 1e3, 1e6, *(critical * k / math.sqrt(n) for k in (0.5, 1.0, 1.1))]
    for ratio in ratios:
        assert t_power(n, 2.0, 2.0 * ratio, confidence) == pytest.approx(power_over_chi(n, ratio, confidence), abs=1e-6)


def test_M2_power_is_a_probability_that_grows_with_n_and_effect():
    effects = np.geomspace(1e-6, 1e6, 61)
    for n in (2, 3, 5, 40):
        powers = [t_power(n, 1.0, effect) for effect in effects]
        assert all(0 <= p <= 1 for p in powers) and (np.diff(powers) >= -1e-12).all()
        assert powers[0] == pytest.approx(0.05, abs=1e-6) and powers[-1] == pytest.approx(1.0, abs=1e-6)
        assert all(t_power(n + 1, 1.0, e) >= p - 1e-12 for e, p in zip(effects, powers, strict=True))


def test_M2_three_seeds_where_two_do_not_suffice():
    for spread in np.geomspace(0.02, 0.2, 40) * 0.01:
        needed = seeds_for_power(spread, 0.01)
        assert power_over_chi(needed, 0.01 / spread, 0.95) >= 0.8 - 1e-9
        assert needed == 2 or power_over_chi(needed - 1, 0.01 / spread, 0.95) < 0.8
    assert seeds_for_power(0.001, 0.01) == 3


@pytest.mark.parametrize(
    ("arguments", "power"),
    [
        ((1, 0.1, 1.0), 0.0),
        ((1, 0.0, 1.0), 0.0),
        ((5, 0.0, 1.0), 1.0),
        ((5, 0.0, 0.0), 0.0),
        ((5, 1.0, 0.0), 0.05),
        ((5, math.inf, 1.0), 0.05),
        ((5, 1.0, math.inf), 1.0),
        ((5, 1.0, -2.0), t_power(5, 1.0, 2.0)),
        ((5, 1e-320, 1e300), 1.0),
    ],
)
def test_M2_the_ends_are_defined(arguments, power):
    assert t_power(*arguments) == pytest.approx(power, abs=1e-9)


def test_M2_searches_end_and_what_is_no_number_is_refused():
    assert seeds_for_power(1.0, 0.0) is None and seeds_for_power(math.inf, 1.0) is None
    assert seeds_for_power(0.0, 1.0) == 2 and seeds_for_power(0.0, 0.0) is None
    many = seeds_for_power(1.0, 0.0033)  # between 2^19 and a million
    assert t_power(many, 1.0, 0.0033) >= 0.8 > t_power(many - 1, 1.0, 0.0033) and 2**19 < many < 10**6
    for bad in ((5, math.nan, 1.0), (5, 1.0, math.nan), (5, -1.0, 1.0), (5, math.inf, math.inf), (0, 1.0, 1.0)):
        with pytest.raises(UserError):
            t_power(*bad)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_M2_spreads_of_any_size(scale):
    found = paired_difference([scale, 2 * scale, 4 * scale], effect=scale)
    wanted = paired_difference([1.0, 2.0, 4.0], effect=1.0)
    assert found.standard_error == pytest.approx(wanted.standard_error * scale, rel=1e-12)
    assert found.seeds_needed == wanted.seeds_needed
    with pytest.raises(UserError, match="finite loss"):
        compare_arms({"uniform": {0: 1.0, 1: 1.0}, "a": {0: 1e308, 1: -1e308}})


def test_M2_an_interval_at_any_confidence():
    for confidence in (1e-17, 1 - 2**-53):
        found = paired_difference([1.0, 1.0, 1.0], confidence)
        assert found.interval == (1.0, 1.0) and found.seeds_needed == 2


@pytest.mark.parametrize("x", [[3, 1, 4, 0, 5, 2], [0, 1, 2, 4, 3, 5], [1, 1, 0, 2, 2, 5]])
def test_M3_p_is_exact_over_all_orders_of_a_signal(x):
    """If y is exchangeable all its orders are alike, so P(p <= a) is at most a for every a."""
    y, depth = np.array([0.3, 2.0, 2.0, 3.7, 5.1, 8.0]), np.arange(6.0)
    found = [partial_spearman(x, y[list(order)], depth)[1] for order in itertools.permutations(range(6))]
    values = np.array([p for p in found if p is not None])
    for level in (0.05 / 9, 0.01, 0.05, 0.1, 0.5):
        assert np.mean(values <= level) <= level
    assert np.mean(values <= 0.1) > 0.08


def test_M3_p_is_nominal_without_association():
    rng, depth = np.random.default_rng(5), np.arange(7.0)
    found = [partial_spearman(*rng.normal(size=(2, 7)), depth)[1] for _ in range(2000)]
    values = np.array([p for p in found if p is not None])
    assert 0.035 < np.mean(values < 0.05) < 0.065  # 3 standard errors of 2,000 draws
    assert np.mean(values < 0.05 / 9) < 0.0106


def test_M3_p_of_many_layers_is_nominal_too():
    rng, depth = np.random.default_rng(6), np.arange(30.0)
    values = np.array([partial_spearman(*rng.normal(size=(2, 30)), depth)[1] for _ in range(200)])
    assert np.mean(values < 0.05) <= 0.1 and np.mean(values < 0.5) == pytest.approx(0.5, abs=0.11)


@pytest.mark.parametrize("bad", [[2.0] * 6, [math.nan, 1, 2, 3, 4, 5], list(range(6)), [0, 0, 1, 1, 2, 2]])
def test_M3_signals_without_a_correlation_have_none(bad):
    depth = [0, 0, 1, 1, 2, 2] if bad[1] == 0 else np.arange(6.0)
    other = np.random.default_rng(0).normal(size=6)
    assert partial_spearman(bad, other, depth) == partial_spearman(other, bad, depth) == (None, None)
    assert partial_spearman([1, 2, 4], [4, 2, 1], [0, 1, 2]) == (None, None)


def test_C5_three_points_by_features_and_by_distances():
    line = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    found = intrinsic_dimension(pairwise_distances(line), k=2, estimators=("twonn_mle", "twonn_fit", "mle")).values
    assert found["twonn_mle"] == pytest.approx(0.9102392, abs=1e-7)
    assert found["twonn_fit"] == pytest.approx(1.4358298, abs=1e-7)
    assert found["mle"] == pytest.approx(1.3653588, abs=1e-7)
    four = np.abs(np.subtract.outer([0.0, 1, 3, 7], [0.0, 1, 3, 7]))
    sums = np.log(np.array([[7, 7], [6, 6], [4, 4], [7, 7]]) / np.array([[1, 3], [1, 2], [2, 3], [4, 6]])).sum(1)
    assert intrinsic_dimension(four, k=3).values["mle_mean"] == pytest.approx(np.mean(1 / sums), rel=1e-12)


def test_C5_clouds_and_distances_agree_and_a_rectangle_is_no_distance_matrix():
    points = np.random.default_rng(1).random((300, 3))
    profile = measure_clouds(cloud(torch.from_numpy(points)), MeasureSettings(("raw",), ("shift",)))
    matrix = np.sqrt(np.square(points[:, None] - points[None]).sum(-1))
    for name, value in intrinsic_dimension(matrix).values.items():
        assert profile.dimension[name][0] == pytest.approx(value, rel=1e-10)
        assert value == pytest.approx(3, rel=0.15)
    with pytest.raises(UserError, match="square matrix"):
        intrinsic_dimension(points)


def test_M7_losses_of_byte_models_are_in_nats_per_byte(capsys):
    from geowidth.report import table
    from geowidth.report.spreadsheets import losses_csv

    comparison = compare_arms({"uniform": {0: 2.0, 1: 2.1}, "a": {0: 1.9, 1: 2.05}})
    assert "nats per byte" in comparison.sentence and "nats/byte" in table(comparison)
    assert "nats per byte" in losses_csv.__doc__
    with pytest.raises(SystemExit):
        cli.main(["compare", "--help"])
    assert "nats per byte" in " ".join(capsys.readouterr().out.split())


def test_M7_losses_of_models_of_tokens_are_in_nats_per_token():
    from geowidth.report import table
    from geowidth.train.evidence import loss_unit

    unit = loss_unit({"unit": "token", "tokens": {"train": 9}})
    comparison = compare_arms({"uniform": {0: 2.0, 1: 2.1}, "a": {0: 1.9, 1: 2.05}}, unit=unit)
    assert "nats per token" in comparison.sentence and "nats per byte" not in comparison.sentence
    record = comparison.to_json()
    assert "nats per token" in record["arms"][1]["sentence"]
    assert "nats/token" in table(record | {"settings": {"corpus": {"unit": "token"}}})
    assert loss_unit({"bytes": {"train": 9}}) == loss_unit(None) == "nats per byte"
