"""`geowidth distances`, `gromov` and `topology` on files."""

import json

import numpy as np
import pytest

from geowidth import cli


@pytest.fixture
def save(tmp_path):
    """Writes an array into a file; returns its path."""

    def write(name, array):
        path = tmp_path / f"{name}.npy"
        np.save(path, np.asarray(array))
        return str(path)

    return write


def refused(capsys, arguments, words):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("geowidth: ") and captured.err.count("\n") == 1
    assert words in captured.err
    assert captured.out == ""


def distances(save, tmp_path, *arrays, **options):
    out = tmp_path / "out ü.npy"
    files = [save(f"x{i}", array) for i, array in enumerate(arrays)]
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert cli.main(["distances", *files, "--out", str(out), *flags]) == 0
    return np.load(out)


@pytest.mark.parametrize(
    ("dtype", "x", "y", "expected"),
    [
        (np.uint16, [[10, 700]], [[13, 300]], 400.01124980),
        (np.int8, [[-128]], [[127]], 255.0),
        (np.int64, [[2**40]], [[2**40 + 3]], 3.0),
        (np.bool_, [[True, False]], [[False, True]], 2**0.5),
        (np.float16, [[300]], [[0]], 300.0),
        (np.uint8, [[3]], [[250]], 247.0),
        (">f8", [[0.0]], [[2.5]], 2.5),
    ],
)
def test_every_dtype_is_widened_before_arithmetic(save, tmp_path, dtype, x, y, expected):
    found = distances(save, tmp_path, np.array(x, dtype), np.array(y, dtype))
    assert found.shape == (1, 1) and found[0, 0] == pytest.approx(expected, rel=1e-9)


def test_a_cloud_against_itself(save, tmp_path, rng):
    x = rng.standard_normal((13, 5)).astype(np.float32)
    found = distances(save, tmp_path, x, geometry="spherical")
    unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    assert found.dtype == np.float32
    assert found == pytest.approx(np.arccos(np.clip(unit @ unit.T, -1, 1)), abs=2e-4)
    assert (found == found.T).all() and (found.diagonal() == 0).all()


@pytest.mark.parametrize("shapes", [((0, 3), (5, 3)), ((5, 0), (4, 0)), ((0, 0),), ((1, 3),)])
def test_degenerate_shapes(save, tmp_path, shapes):
    found = distances(save, tmp_path, *(np.zeros(shape) for shape in shapes))
    assert found.shape == (shapes[0][0], shapes[-1][0]) and not found.any()


def test_bad_arrays_are_refused_by_name(save, tmp_path, capsys):
    out = ["--out", str(tmp_path / "d.npy")]
    good = save("good", np.eye(3))
    junk = tmp_path / "junk.npy"
    junk.write_bytes(b"junk")
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    refused(capsys, ["distances", str(tmp_path / "absent.npy"), *out], "absent.npy")
    refused(capsys, ["distances", str(junk), *out], "junk.npy")
    refused(capsys, ["distances", str(pickled), *out], "pickled.npy")
    refused(capsys, ["distances", save("flat", np.zeros(3)), *out], "shape (3,)")
    refused(capsys, ["distances", save("complex", np.zeros((2, 2), complex)), *out], "complex128")
    refused(capsys, ["distances", save("wide", np.zeros((4, 3))), save("thin", np.zeros((4, 2))), *out], "(4, 3)")
    refused(capsys, ["distances", save("zero", np.zeros((4, 3))), "--geometry", "spherical", *out], "row 0")
    refused(capsys, ["distances", good, "--geometry", "flat", *out], "allowed: raw, spherical, hyperbolic")
    refused(capsys, ["distances", good, "--out", str(tmp_path / "d.txt")], "a file that ends in .npy")
    refused(capsys, ["distances", good, "--out", str(tmp_path / "good.npy" / "d.npy")], "cannot write")
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".npy"] * 8


def test_gromov_of_two_point_spaces(save, tmp_path, capsys):
    """Gaps 1 and 3: with the identity E = (1 - 3)^2 / 2 = 2, which no coupling beats."""
    files = [save("a", [[0.0, 1.0], [1.0, 0.0]]), save("b", [[0.0, 3.0], [3.0, 0.0]])]
    result, coupling = tmp_path / "gw.json", tmp_path / "t.npy"
    assert cli.main(["gromov", *files, "--out", str(result), "--coupling", str(coupling)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["value"] == pytest.approx(2.0) and facts["gw"] == pytest.approx(2**0.5)
    assert facts["lower"] <= facts["value"] <= facts["identity"]
    assert json.loads(result.read_text()) == facts
    assert np.load(coupling).sum(0) == pytest.approx([0.5, 0.5])
    assert cli.main(["gromov", *files, "--entropic", "--eps", "1e6"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == pytest.approx(3.5)


def test_gromov_refuses_bad_matrices(save, tmp_path, capsys):
    good, out = save("good", [[0.0, 1.0], [1.0, 0.0]]), str(tmp_path / "gw.json")
    refused(capsys, ["gromov", save("nan", [[np.nan, 1.0], [1.0, 0.0]]), good, "--out", out], "c1[0, 0] is nan")
    refused(capsys, ["gromov", good, save("inf", [[0.0, np.inf], [np.inf, 0.0]]), "--out", out], "c2[0, 1] is inf")
    refused(capsys, ["gromov", good, save("asym", [[0.0, 1.0], [2.0, 0.0]]), "--out", out], "c2")
    refused(capsys, ["gromov", good, save("wide", np.zeros((2, 3))), "--out", out], "(2, 3)")
    refused(capsys, ["gromov", good, good, "--eps", "1"], "--entropic")
    refused(capsys, ["gromov", good, good, "--entropic", "--eps", "-1"], "eps is -1")
    assert not (tmp_path / "gw.json").exists()


def test_topology_of_a_regular_polygon(save, tmp_path, capsys):
    angles = 2 * np.pi * np.arange(12) / 12
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    matrix = np.linalg.norm(points[:, None] - points, axis=-1)
    matrix = (matrix + matrix.T) / 2
    out = tmp_path / "bars.npy"
    assert cli.main(["topology", save("d", matrix), save("e", 2 * matrix), "--out", str(out)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert np.load(out) == pytest.approx(np.array([[0.5176381, 1.7320508]]))
    assert [d["bars"] for d in facts["diagrams"]] == [1, 1]
    # Matched with each other the bars cost max(0.518, 1.732) = 1.732; both to the diagonal sqrt(0.607^2 + 1.214^2).
    assert facts["distance"] == pytest.approx(np.hypot(1.2144127, 2 * 1.2144127) / 2, rel=1e-6)
    assert cli.main(["topology", save("d", matrix), "--threshold", "1.0"]) == 0
    assert json.loads(capsys.readouterr().out)["diagrams"][0]["endless"] == 1


def test_topology_refuses_bad_matrices(save, capsys):
    refused(capsys, ["topology", save("neg", [[0.0, -0.2], [-0.2, 0.0]])], "neg.npy: ")
    refused(capsys, ["topology", save("diag", [[0.1, 1.0], [1.0, 0.0]])], "diag.npy: ")
