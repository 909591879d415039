"""The least squares of one layer, against numpy and against what must hold."""

import numpy as np
import pytest
import torch

from geowidth.slicing.correction import corrected

GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def by_numpy(hidden, columns, kept, ridge, bias):
    """C and the bias from numpy's least squares, the ridge as further rows."""
    h, w = hidden.numpy(), columns.numpy()
    removed = np.setdiff1d(np.arange(h.shape[1]), kept)
    stay, lost = h[:, kept], h[:, removed] @ w[:, removed].T
    means = (stay.mean(0), lost.mean(0)) if bias else (0.0, 0.0)
    stay, lost = stay - means[0], lost - means[1]
    damping = np.sqrt(ridge * np.mean((stay**2).sum(0))) * np.eye(len(kept))
    found = np.linalg.lstsq(
        np.vstack([stay, damping]), np.vstack([lost, np.zeros((len(kept), lost.shape[1]))]), rcond=None
    )[0].T
    intercept = means[1] - found @ means[0] if bias else np.zeros(len(columns))
    return torch.from_numpy(found), torch.from_numpy(intercept)


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize(("width", "keep", "dimension"), ((13, 9, 7), (40, 3, 5), (300, 290, 11)))
def test_least_squares_are_those_of_numpy(width, keep, dimension, bias):
    """With fewer neurons removed than the stream is wide, and with more; with more neurons than a stripe of G holds."""
    hidden, columns = drawn(350, width) + 0.3, drawn(dimension, width)
    kept = torch.randperm(width, generator=GENERATOR)[:keep].sort().values
    found = corrected(hidden, columns, kept, (0.02,), 0, bias)
    right, intercept = by_numpy(hidden, columns, kept.numpy(), 0.02, bias)
    np.testing.assert_allclose(found.columns, right, rtol=1e-8, atol=1e-10)
    assert found.ridge == 0.02 and found.unexplained is None
    if bias:
        np.testing.assert_allclose(found.bias, intercept, rtol=1e-8, atol=1e-10)
    else:
        assert found.bias is None


@pytest.mark.parametrize("bias", (False, True))
def test_the_ridge_is_that_of_least_error_on_the_tokens_kept_out(bias):
    hidden = drawn(60, 12)
    hidden[:, 9:] = hidden[:, :3] + 0.5 * drawn(60, 3)
    columns, kept, ridges = drawn(6, 12), torch.arange(9), (1e-4, 1e-2, 0.3, 3.0)

    def error(ridge):
        matrix, intercept = by_numpy(hidden[:45], columns, kept.numpy(), ridge, bias)
        lost = hidden[45:, 9:] @ columns[:, 9:].T
        return float((lost - hidden[45:, :9] @ matrix.T - intercept).norm() ** 2)

    best = min(ridges, key=error)
    found = corrected(hidden, columns, kept, ridges, 15, bias)
    lost = hidden[45:, 9:] @ columns[:, 9:].T
    none = lost - (hidden[:45, 9:] @ columns[:, 9:].T).mean(0) * bias
    assert found.ridge == best and ridges[0] < best < ridges[-1]
    assert found.unexplained == pytest.approx(error(best) / float(none.norm() ** 2))
    np.testing.assert_allclose(
        found.columns, by_numpy(hidden, columns, kept.numpy(), best, bias)[0], rtol=1e-7, atol=1e-9
    )


def test_noise_is_not_corrected():
    """Neurons of which the others know nothing: on the tokens kept out no correction is the best one."""
    found = corrected(drawn(40, 30), drawn(5, 30), torch.arange(25), (1e-3, 1e-2), 10)
    assert found.columns is None and found.ridge is None and found.unexplained == 1
    found = corrected(drawn(40, 30), drawn(5, 30), torch.arange(25), (1e-3, 1e-2), 10, bias=True)
    assert found.columns is None and found.bias.shape == (5,)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_what_depends_linearly_on_the_rest_is_made_up_for(dtype):
    hidden, columns = drawn(80, 20), drawn(9, 20)
    hidden[:, 3] = 2 * hidden[:, 5]  # G is singular among those that stay
    hidden[:, 16:] = hidden[:, :16] @ drawn(16, 4)
    hidden, columns = hidden.to(dtype), columns.to(dtype)
    for ridges in ((0.0,), (1e-12,), (1e-1, 1e-5, 1e-12)):
        found = corrected(hidden, columns, torch.arange(16), ridges, 20)
        sliced = hidden[:, :16].double() @ (columns[:, :16] + found.columns).T.double()
        tolerance = 1e-3 if dtype is torch.float32 else 1e-4
        torch.testing.assert_close(sliced, (hidden @ columns.T).double(), rtol=tolerance, atol=tolerance)


def test_the_mean_of_what_goes_is_the_bias_of_flap():
    hidden, columns = drawn(30, 8) + 1, drawn(4, 8)
    found = corrected(hidden, columns, torch.tensor([0, 5]), (), 0, bias=True)
    gone = [1, 2, 3, 4, 6, 7]
    torch.testing.assert_close(found.bias, columns[:, gone] @ hidden[:, gone].mean(0))
    assert found.columns is None and found.ridge is None
    assert corrected(hidden, columns, torch.tensor([], dtype=torch.int64), (0.1, 0.2), 6, bias=True).bias is not None


def test_neurons_that_never_fire_correct_nothing():
    hidden = drawn(30, 8)
    hidden[:, :4] = 0
    assert corrected(hidden, drawn(4, 8), torch.arange(4), (0.1,), 0).columns is None
    found = corrected(hidden, drawn(4, 8), torch.arange(4), (0.1, 0.2), 6)
    assert found.columns is None and found.unexplained == 1


def test_autocast_leaves_the_products_as_they_are():
    hidden, columns, kept = drawn(50, 12).float(), drawn(6, 12).float(), torch.arange(9)
    plain = corrected(hidden, columns, kept, (1e-2,), 0, True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = corrected(hidden, columns, kept, (1e-2,), 0, True)
    assert torch.equal(found.columns, plain.columns) and torch.equal(found.bias, plain.bias)
