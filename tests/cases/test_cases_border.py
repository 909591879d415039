"""Cases of the border (A7, A9, B6, H4): ops and commands take any array that means numbers, or name what is wrong.

A new op is a row of ARRAYS, and one of SCALAR_ARGUMENTS for each argument that is not an array.
"""

import math
from functools import partial

import hostile_values as hostile
import numpy as np
import pytest
import torch

from geowidth import geometry as geo
from geowidth.cli import main
from geowidth.errors import UserError
from geowidth.inputs import FLOATS
from geowidth.measure import (
    Clouds,
    MeasureSettings,
    diagram_distance,
    intrinsic_dimension,
    measure_clouds,
    merge_duplicates,
    persistence_diagram,
)
from geowidth.ops import (
    activate,
    assignment,
    entropic_gromov_wasserstein,
    ffn,
    gromov_wasserstein,
    pairwise_distances,
    sinkhorn,
)

POINTS = np.array([[0.0, 1, 5], [1, 3, 0], [4, 0, 2], [7, 7, 1], [2, 9, 6], [12, 4, 3]])
METRIC = np.abs(POINTS[:, :1] - POINTS[:, 0])
OTHER = np.abs(POINTS[:, 1:2] - POINTS[:, 1])
BARS = np.array([[1.0, 4], [2, 3], [5, 9]])
START = np.array([1.0, 0, 3, 2, 5, 4])
SIXTHS, COUPLING = np.full(6, 1 / 6), np.full((6, 6), 1 / 36)
rows, metric = torch.from_numpy(POINTS), torch.from_numpy(METRIC)

# name: (the argument, a clean array for it, call)
ARRAYS = {
    "distances x": ("x", POINTS, lambda v: pairwise_distances(v, geometry="raw")),
    "distances y": ("y", POINTS, lambda v: pairwise_distances(rows, v, geometry="spherical")),
    "distances x, plain torch": ("x", POINTS, lambda v: pairwise_distances(v, backend="torch")),
    "reference x": ("x", POINTS, geo.reference_distances),
    "reference y": ("y", POINTS, lambda v: geo.reference_distances(rows, v)),
    "paired x": ("x", POINTS, lambda v: geo.paired_distances(v, rows + 1)),
    "paired y": ("y", POINTS, lambda v: geo.paired_distances(rows + 1, v, "hyperbolic")),
    "poincare x": ("x", POINTS, lambda v: geo.poincare_distance(v, rows, curvature=-1e-4)),
    "poincare y": ("y", POINTS, lambda v: geo.poincare_distance(rows, v, curvature=-1e-4)),
    "gromov c1": ("c1", METRIC, lambda v: _of(gromov_wasserstein, "value", v, _like(v, OTHER))),
    "gromov c2": ("c2", METRIC, lambda v: _of(gromov_wasserstein, "value", _like(v, OTHER), v)),
    "gromov c1, plain torch": ("c1", METRIC, lambda v: _of(gromov_wasserstein, "value", v, v, backend="torch")),
    "entropic c1": ("c1", METRIC, lambda v: _of(entropic_gromov_wasserstein, "value", v, _like(v, OTHER))),
    "entropic p": ("p", SIXTHS, lambda v: _of(entropic_gromov_wasserstein, "value", metric, metric, p=v)),
    "entropic q": ("q", SIXTHS, lambda v: _of(entropic_gromov_wasserstein, "value", metric, metric, q=v)),
    "entropic start": ("start", COUPLING, lambda v: _of(entropic_gromov_wasserstein, "value", metric, metric, start=v)),
    "sinkhorn cost": ("cost", METRIC, lambda v: _of(sinkhorn, "coupling", v, 2.0)),
    "sinkhorn a": ("a", SIXTHS, lambda v: _of(sinkhorn, "coupling", metric, 2.0, v)),
    "sinkhorn b": ("b", SIXTHS, lambda v: _of(sinkhorn, "coupling", metric, 2.0, None, v)),
    "assignment cost": ("cost", METRIC, lambda v: _of(assignment, "cost", v)),
    "assignment start": ("start", START, lambda v: _of(assignment, "cost", metric, start=v)),
    "assignment column_dual": ("column_dual", START, lambda v: _of(assignment, "cost", metric, column_dual=v)),
    "persistence": ("distances", METRIC, persistence_diagram),
    "dimension": ("distances", METRIC, lambda v: intrinsic_dimension(v, k=3).values["mle"]),
    "merge": ("distances", METRIC, lambda v: merge_duplicates(v)[0]),
    "diagram a": ("a", BARS, lambda v: diagram_distance(v, BARS[:1])),
    "diagram b": ("b", BARS, lambda v: diagram_distance(BARS[:1], v)),
    "angle": ("angle", START / 2, geo.hyperbolic_from_angle),
    "activate up": ("up", POINTS, lambda v: activate(None, v, "silu")),
    "activate gate": ("gate", POINTS, lambda v: activate(v, _with(v, POINTS), "silu")),
    "ffn x": ("x", POINTS, lambda v: ffn(v, None, _with(v, POINTS), _with(v, POINTS), "silu")),
    "ffn up": ("up", POINTS, lambda v: ffn(_with(v, POINTS), None, v, _with(v, POINTS), "silu")),
    "ffn down": ("down", POINTS, lambda v: ffn(_with(v, POINTS), None, _with(v, POINTS), v, "silu")),
}
LAYERS = tuple(name for name in ARRAYS if name.startswith(("activate", "ffn")))  # take floating tensors alone


def _of(op, field, *arguments, **options):
    return getattr(op(*arguments, **options), field)


def _like(value, array):
    """`array` in the dtype that the op computes `value` in: both costs must agree."""
    name = str(getattr(value, "dtype", getattr(getattr(value, "tensor", None), "dtype", "float64")))
    narrow = any(kind in name for kind in ("float32", "float16", "f4", "f2"))
    return array.astype(np.float32 if narrow and not isinstance(value, list) else np.float64)


def _with(value, array):
    """`array` as a tensor in the dtype of the tensor `value`, where a layer takes that one."""
    return torch.from_numpy(array).to(value.dtype if value.dtype in FLOATS else torch.float64)


def _numbers(result):
    return np.asarray(
        result.detach().double().numpy() if isinstance(result, torch.Tensor) else result, dtype=np.float64
    )


@pytest.mark.parametrize("row", ARRAYS)
def test_A7_H4_the_same_numbers_give_the_same_result(row):
    """Whatever holds them: the result is that of a plain float64 array, or both are refused."""
    name, clean, call = ARRAYS[row]
    for kind in hostile.SAME:
        value = hostile.made(hostile.SAME, kind, clean)
        if row in LAYERS and not (isinstance(value, torch.Tensor) and value.is_floating_point()):
            continue
        numbers = hostile.plain(value)
        try:
            expected = _numbers(call(torch.from_numpy(numbers)))
        except UserError:
            with pytest.raises(UserError, match=name):
                call(value)
            continue
        found = _numbers(call(value))
        low = row in LAYERS and value.dtype in (torch.float16, torch.bfloat16)
        np.testing.assert_allclose(found, expected, 1e-2 if low else 2e-5, 1e-5, err_msg=f"{row}: {kind}")


@pytest.mark.parametrize("row", ARRAYS)
def test_B6_what_is_not_numbers_is_refused_by_name(row):
    name, clean, call = ARRAYS[row]
    for kind in hostile.NOTHING:
        if (row, kind) in (("angle", "no axes"), ("angle", "four axes"), ("activate up", "four axes")):
            continue
        value = hostile.made(hostile.NOTHING, kind, clean)
        if row in LAYERS and not isinstance(value, torch.Tensor):
            continue
        with pytest.raises(UserError, match=rf"(^|\W){name}\b") as refusal:
            call(value)
        assert "\n" not in str(refusal.value), kind


@pytest.mark.parametrize("row", LAYERS)
def test_B6_layers_take_tensors_alone(row):
    name = ARRAYS[row][0]
    call = partial(activate, None) if row == "activate up" else None
    for value in (POINTS, POINTS.tolist(), "x", None, 3):
        with pytest.raises(UserError, match=name):
            if row.startswith("activate"):
                call(value, "silu") if call else activate(value if value is not None else 3, rows, "silu")
            else:
                given = {"x": rows, "up": rows, "down": rows} | {name: value}
                ffn(given["x"], None, given["up"], given["down"], "silu")


REQUIRED = [row for row in ARRAYS if row.split()[-1] not in ("y", "p", "q", "a", "b", "start", "column_dual", "gate")]


@pytest.mark.parametrize("row", [row for row in REQUIRED if row not in LAYERS])
def test_B6_None_is_refused_where_an_array_is_needed(row):
    name, _, call = ARRAYS[row]
    with pytest.raises(UserError, match=f"{name} is None"):
        call(None)


def test_A7_lists_are_float64_everywhere():
    assert pairwise_distances(POINTS.tolist()).dtype == torch.float64
    assert sinkhorn(METRIC.tolist(), 2.0).coupling.dtype == torch.float64
    assert entropic_gromov_wasserstein(METRIC.tolist(), OTHER.tolist()).coupling.dtype == torch.float64


@pytest.mark.parametrize(
    ("x", "y", "distance"),
    [
        (np.array([[10, 700]], np.uint16), np.array([[13, 300]], np.uint16), 400.0112498),
        (torch.tensor([[10, 700]]).to(torch.uint16), torch.tensor([[13, 300]]).to(torch.uint16), 400.0112498),
        (np.array([[-128]], np.int8), np.array([[127]], np.int8), 255),
        (np.array([[2**40]]), np.array([[2**40 + 3]]), 3),
        (np.array([[2**53]]), np.array([[2**53 - 3]]), 3),
        (np.array([[True, False]]), np.array([[False, True]]), math.sqrt(2)),
        (np.array([[300]], np.float16), np.array([[0]], np.float16), 300),
        (torch.tensor([[1.0, 256]]).bfloat16(), torch.tensor([[1.0, 0]]).bfloat16(), 256),
        (np.array([[10, 700]], ">u2"), [[13, 300]], 400.0112498),
        (np.array([[255]], np.uint8)[::-1], np.array([[0]], ">i4"), 255),
    ],
)
def test_A7_narrow_types_are_widened_before_arithmetic(x, y, distance):
    assert pairwise_distances(x, y).item() == pytest.approx(distance, rel=1e-6)


def test_A9_degenerate_shapes():
    empty = torch.zeros(0, 3)
    for backend in ("native", "torch"):
        made = partial(pairwise_distances, backend=backend)
        assert made(empty, torch.ones(5, 3)).shape == (0, 5) and made(torch.ones(5, 3), empty).shape == (5, 0)
        assert torch.equal(made(torch.ones(5, 0), torch.ones(4, 0)), torch.zeros(5, 4))
        assert made(empty).shape == (0, 0) and made(np.zeros((0, 0))).shape == (0, 0)
        assert made([[1.0, 2, 3]]).tolist() == [[0.0]]
        x = torch.ones(4, 3, requires_grad=True)
        assert torch.autograd.grad(made(x, empty).sum(), x)[0].tolist() == [[0.0] * 3] * 4
        with pytest.raises(UserError, match=r"\(4, 3\).*\(4, 2\)"):
            made(np.ones((4, 3)), np.ones((4, 2)))
        with pytest.raises(UserError, match=r"x has shape \(3,\)"):
            made([1.0, 2, 3])
        bad = torch.ones(3, 2)
        bad[1, 0] = math.nan
        found = made(bad)
        assert found[1].isnan().all() and found[:, 1].isnan().all() and found[0, 2] == 0


@pytest.mark.parametrize("entropic", [[], ["--entropic"]])
@pytest.mark.parametrize("kind", [">f8", ">f4", "<f2", np.longdouble, ">i8"])
def test_H4_byte_orders_and_precisions_of_files(tmp_path, capsys, kind, entropic):
    from geowidth import records

    values = []
    for name, dtype in (("given", kind), ("plain", np.float64)):
        for end, matrix in (("1", METRIC), ("2", OTHER)):
            np.save(tmp_path / f"{name}{end}.npy", matrix.astype(dtype))
        paths = [str(tmp_path / f"{name}{end}.npy") for end in "12"]
        assert main(["gromov", *paths, *entropic]) == 0
        values.append(records.loads(capsys.readouterr().out)["value"])
        assert main(["topology", *paths]) == 0
        assert main(["distances", *paths, "--out", str(tmp_path / f"{name}.npy")]) == 0
        assert main(["distances", paths[0], "--geometry", "raw", "--out", str(tmp_path / f"{name}.npy")]) == 0
        capsys.readouterr()
    assert values[0] == pytest.approx(values[1], rel=1e-4)  # entropic: float32, stopped at its own tolerance
    np.testing.assert_allclose(np.load(tmp_path / "given.npy"), np.load(tmp_path / "plain.npy"), rtol=1e-6)


def test_B6_files_that_hold_no_real_numbers(tmp_path, capsys):
    for array in (METRIC + 1j, METRIC.astype(str), METRIC.astype("M8[D]"), np.full((2, 2), np.longdouble("1e4000"))):
        np.save(tmp_path / "bad.npy", array)
        np.save(tmp_path / "good.npy", METRIC)
        for command in ("gromov", "topology", "distances"):
            out = tmp_path / ("out.json" if command == "gromov" else "out.npy")
            assert main([command, *(str(tmp_path / f"{n}.npy") for n in ("bad", "good")), "--out", str(out)]) == 2
            said = capsys.readouterr()
            assert "bad.npy" in said.err and said.err.count("\n") == 1 and not out.exists()


gromov = partial(gromov_wasserstein, METRIC, OTHER)
entropic = partial(entropic_gromov_wasserstein, METRIC, OTHER)
dimension = partial(intrinsic_dimension, METRIC, estimators=("twonn_mle", "mle"))
layer = partial(ffn, rows, None, rows, rows)
# (call, argument, kind): kind says what is certainly refused.
SCALAR_ARGUMENTS = [
    *[(op, "threads", "number") for op in (partial(pairwise_distances, rows), gromov, entropic)],
    (partial(sinkhorn, METRIC, 1.0), "threads", "number"),
    *[(gromov, name, "number") for name in ("tolerance", "max_iterations")],
    *[(entropic, name, "number") for name in ("tolerance", "max_iterations", "eps", "eps_rel", "rank")],
    (partial(sinkhorn, METRIC), "eps", "number"),
    *[(partial(sinkhorn, METRIC, 1.0), name, "number") for name in ("tolerance", "max_iterations")],
    (partial(pairwise_distances, rows, geometry="hyperbolic"), "radius", "number"),
    (partial(geo.hyperbolic_from_angle, 1.0), "radius", "number"),
    (partial(geo.poincare_distance, rows / 20, rows / 20), "curvature", "number"),
    (dimension, "k", "number"),
    (partial(intrinsic_dimension, METRIC, k=3), "estimators", "name"),
    (partial(persistence_diagram, METRIC), "threshold", "number"),
    (partial(persistence_diagram, METRIC), "validate", "switch"),
    (partial(dimension, k=3), "validate", "switch"),
    (gromov, "swaps", "switch"),
    (gromov, "starts", "name"),
    (entropic, "start", "name"),
    (partial(pairwise_distances, rows), "geometry", "name"),
    (partial(geo.reference_distances, rows, rows), "geometry", "name"),
    (partial(geo.paired_distances, rows, rows), "geometry", "name"),
    (partial(merge_duplicates, METRIC), "precision", "name"),
    (partial(diagram_distance, BARS, BARS), "ground", "name"),
    (partial(diagram_distance, BARS, BARS), "order", "number"),
    *[(op, "backend", "name") for op in (gromov, entropic, partial(pairwise_distances, rows))],
    (partial(assignment, METRIC), "backend", "name"),
    (partial(sinkhorn, METRIC, 1.0), "backend", "name"),
    (partial(activate, None, rows, "silu"), "backend", "name"),
    (partial(layer, "silu"), "backend", "name"),
    (partial(activate, None, rows), "activation", "name"),
    (layer, "activation", "name"),
    (partial(layer, "silu"), "recompute", "name"),
    (partial(layer, "silu"), "input_precision", "name"),
]  # fmt: skip
REFUSED = {"number": hostile.NO_NUMBER, "name": hostile.NO_NAME, "switch": hostile.NO_SWITCH}


@pytest.mark.parametrize(("call", "argument", "kind"), SCALAR_ARGUMENTS, ids=lambda v: v if isinstance(v, str) else "")
def test_B6_arguments_of_the_wrong_type_are_named(call, argument, kind):
    for name, value in hostile.SCALARS.items():
        try:
            result = call(**{argument: value})
        except UserError as error:
            assert argument.rstrip("s") in str(error) and "\n" not in str(error), (name, str(error))
            continue
        assert name not in REFUSED[kind] or (argument, name) in ACCEPTED, (argument, name)
        value = getattr(result, "value", getattr(result, "cost", result))
        assert not isinstance(value, (float, torch.Tensor, np.ndarray)) or not np.isnan(_numbers(value)).any(), name


# For order, 2 is the only value; estimators and precision take types and lists of names.
ACCEPTED = {("precision", "a type")}


def test_B6_threads_say_the_most():
    with pytest.raises(UserError, match=r"threads is 4000; allowed: whole numbers from 1 to \d+"):
        gromov(threads=4000)
    with pytest.raises(UserError, match=r"threads is 1\.5"):
        pairwise_distances(rows, threads=1.5)
    assert torch.equal(pairwise_distances(rows, threads=np.int32(1)), pairwise_distances(rows))


def test_B6_clouds_are_checked_at_the_border():
    states = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    facts = {
        "token_ids": torch.arange(8),
        "positions": torch.arange(8),
        "widths": (4, 4),
        "projections": 2,
        "settings": {},
    }
    settings = MeasureSettings(geometries=("raw",), statistics=("shift",), neighbours=3)

    def measured(before):
        return measure_clouds(Clouds(before=before, after=states + 1, **facts), settings).work["raw"]["shift"]

    expected = measured(states)
    for same in (
        states.numpy()[:, ::-1][:, ::-1],
        states.numpy().astype(">f8"),
        states.tolist(),
        torch._neg_view(-states),
    ):
        assert measured(same) == expected
    assert measured(states.clone().requires_grad_()) == expected
    for wrong in (
        states + 0j,
        states.to_sparse(),
        states.to("meta"),
        states.to(torch.float8_e5m2),
        None,
        states[0],
        "x",
    ):
        with pytest.raises(UserError, match="before"):
            measured(wrong)
    for threads in (1.5, 4000, 0, math.nan, True, "2"):
        with pytest.raises(UserError, match="threads"):
            measure_clouds(Clouds(before=states, after=states, **facts), settings, threads=threads)
    for call in (lambda: measure_clouds(None), lambda: measure_clouds(Clouds(states, states, **facts), "x")):
        with pytest.raises(UserError, match="needed: (Clouds|MeasureSettings)"):
            call()
    with pytest.raises(UserError, match=r"device is \[1\]"):
        MeasureSettings(device=[1])
