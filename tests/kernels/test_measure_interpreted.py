"""The Triton kernels of distances and of Sinkhorn's iterations: in Triton's interpreter, and on a GPU where one is."""

import pytest
import torch
from processes import HERE, run

from geowidth.ops import triton_support
from geowidth.ops.backend import OPERATIONS

CHECKS = (
    "distances_in_every_dtype",
    "distances_of_one_geometry",
    "distances_of_near_pairs",
    "distances_of_hostile_rows",
    "distances_from_another_gram",
    "sinkhorn_steps",
    "sinkhorn_of_long_rows",
    "sinkhorn_of_hostile_costs",
    "sinkhorn_of_tiny_weights",
    "sinkhorn_of_slow_costs",
    "sinkhorn_warm_start",
    "sinkhorn_op",
    "entropic_gromov",
)


MACHINES = {"interpreted": {"TRITON_INTERPRET": "1"}} | ({"cuda": {}} if torch.cuda.is_available() else {})


@pytest.fixture(scope="module", params=MACHINES)
def output(request):
    """What all checks in one process wrote: importing torch and Triton takes longer than most of them."""
    pytest.importorskip("triton")
    done = run(str(HERE / "interpreted_measure.py"), *CHECKS, **MACHINES[request.param])
    return done.stdout, done.stderr


@pytest.mark.parametrize("check", CHECKS)
def test_kernels(check, output):
    assert f"{check} ok" in output[0], "".join(output)


@pytest.mark.parametrize("name", ["pairwise_distances", "sinkhorn", "entropic_gromov_wasserstein"])
def test_backends_in_their_order(name):
    """Triton stands between compiled kernels and plain torch, on GPUs and, interpreted, on the CPU."""
    operation = OPERATIONS[name]
    for device, best in (("cuda", "cuda"), ("cpu", "native")):
        names = [b.name for b in operation.backends if device in b.devices]
        assert names.index("triton") == len([n for n in names if n != "torch"]) - 1 and names.count("triton") == 1
        assert best not in names or names.index(best) < names.index("triton")
    reasons = dict(operation.report("cpu"))
    if not triton_support.interpreted():
        assert "TRITON_INTERPRET=1" in reasons["triton"] or "not importable" in reasons["triton"]
