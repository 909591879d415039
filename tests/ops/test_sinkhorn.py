"""Sinkhorn's plans against the plain iterations in the log domain, at small and prime sizes."""

import pytest
import torch

from geowidth.ops import sinkhorn
from geowidth.ops.transport.reference import sinkhorn_reference


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (7, 3), (31, 29)])
def test_plans_are_those_of_the_reference(n, m, backend):
    generator = torch.Generator().manual_seed(n * m)
    cost = torch.randn(n, m, generator=generator, dtype=torch.float64)
    a, b = (torch.rand(size, generator=generator, dtype=torch.float64) + 0.1 for size in (n, m))
    a, b = a / a.sum(), b / b.sum()
    for eps in (0.2, 1.0):
        found = sinkhorn(cost, eps, a, b, tolerance=1e-12, backend=backend)
        expected = sinkhorn_reference(cost, eps, a, b)
        torch.testing.assert_close(found.coupling, expected, rtol=1e-8, atol=1e-11)
        assert found.cost == pytest.approx(float((cost * expected).sum()), abs=1e-9)
