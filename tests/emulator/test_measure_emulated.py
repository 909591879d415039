"""A layer's measurement with the CUDA kernels under the ops, run on the CPU: distances, matched sums, certificates and
assignments as on a GPU, persistence on the host."""

import pytest
import torch

from geowidth.measure import Clouds, MeasureSettings
from geowidth.measure.layers import measure_layer
from geowidth.ops import backend


@pytest.mark.parametrize("moved", (0.05, 1.0))
def test_a_layer_measured_by_cuda_kernels(cuda_backend, monkeypatch, moved):
    g = torch.Generator().manual_seed(7)
    before = torch.randn(1, 29, 6, generator=g)
    after = before + moved * torch.randn(1, 29, 6, generator=g)
    clouds = Clouds(before, after, torch.arange(29), torch.arange(29), (16,), 3, {})
    settings = MeasureSettings(bootstrap=1)
    expected = measure_layer(clouds, 0, settings)
    used, choose = set(), backend.Operation.choose

    def as_on_a_gpu(operation, device, wanted=None, **request):
        for candidate in operation.backends:
            if candidate.name == "cuda":
                used.add(operation.name)
                return candidate
        return choose(operation, device, wanted, **request)

    monkeypatch.setattr(backend.Operation, "choose", as_on_a_gpu)
    found = measure_layer(clouds, 0, settings)
    assert {"pairwise_distances", "gromov_wasserstein"} <= used
    assert cuda_backend.emulator.statistics()["launches"] > 100
    for geometry, statistics in expected["work"].items():
        for name, value in statistics.items():
            assert found["work"][geometry][name] == pytest.approx(value, rel=1e-8, abs=1e-12), (geometry, name)
    assert found["dimension"] == pytest.approx(expected["dimension"], rel=1e-8)
