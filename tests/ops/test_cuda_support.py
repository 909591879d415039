"""Why the CUDA kernels cannot run here: a sentence for every case, from facts alone."""

import pytest
import torch

from geowidth.ops import backend, cuda_support
from geowidth.ops.cuda_support import Facts, reason, serves


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"torch_cuda": None}, "this torch is built without CUDA; install one that is"),
        ({"torch_cuda": None, "hip": "6.2"}, "built for AMD GPUs"),
        ({"driver": 0}, "no NVIDIA driver was found; install one"),
        ({"visible": False}, "torch sees no CUDA GPU; check nvidia-smi"),
        ({"visible": False, "missing": "not built", "driver": None}, "torch sees no CUDA GPU"),
        ({"missing": "geowidth._cuda is not importable"}, "geowidth._cuda is not importable"),
        (
            {"driver": 12080},
            "up to 12.8, and geowidth._cuda was built with 13.0; update the driver, or reinstall with nvcc 12",
        ),
        ({"driver": 12080, "visible": False}, "up to 12.8, and this torch needs 13.0; update the driver"),
        ({"capability": (6, 1)}, "compute capability 6.1; the CUDA kernels need 7.0"),
        (
            {"capability": (7, 5)},
            "built for 80, 90a, 100, and the GPU is 7.5; reinstall with nvcc and GEOWIDTH_CUDA_ARCHITECTURES=75",
        ),
        ({"capability": (12, 0), "architectures": "90a", "ptx": ""}, "GEOWIDTH_CUDA_ARCHITECTURES=120"),
        (
            {"capability": (12, 0), "driver": 13000, "runtime": 13010},
            "from PTX of CUDA 13.1, but serves CUDA up to 13.0",
        ),
    ],
)
def test_a_sentence_for_every_obstacle(facts, words):
    sentence = reason(Facts(**facts))
    assert words in sentence and "\n" not in sentence and len(sentence) < 200


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"driver": 13020},
        {"runtime": 13020},  # an older driver of the same major version runs machine code
        {"driver": 13000, "runtime": 12080, "torch_cuda": "12.8"},
        {"capability": (8, 6)},
        {"capability": (8, 9), "architectures": "80", "ptx": "80"},
        {"capability": (10, 3)},
        {"capability": (12, 0)},  # compiled by the driver from PTX
        {"capability": (9, 0), "architectures": "80", "ptx": "80"},
    ],
)
def test_nothing_against_what_works(facts):
    assert reason(Facts(**facts), cooperative=True) is None


def test_cooperative_launches_only_where_they_are_needed():
    assert reason(Facts(cooperative=False)) is None
    assert "no cooperative launches" in reason(Facts(cooperative=False), cooperative=True)


def test_which_code_serves_which_chip():
    assert serves("80", (8, 0)) and serves("80", (8, 9)) and not serves("80", (9, 0)) and not serves("86", (8, 0))
    assert serves("90a", (9, 0)) and not serves("100a", (10, 3)) and serves("100f", (10, 3))
    assert not serves("100f", (11, 0)) and serves("100", (10, 0)) and not serves("100", (12, 0))


class Module:
    """geowidth._cuda as far as the facts go."""

    @staticmethod
    def build_information():
        return {"architectures": "80", "ptx": "80", "runtime": 12080}

    @staticmethod
    def driver_version():
        return 0


def test_facts_come_from_torch_and_the_extension(monkeypatch):
    cuda_support._facts.cache_clear()
    monkeypatch.setattr(backend, "cuda", lambda: (Module, None))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    facts = cuda_support._facts(None)
    cuda_support._facts.cache_clear()
    assert (facts.architectures, facts.driver, facts.runtime, facts.visible) == ("80", 0, 12080, False)
    assert facts.torch_cuda == torch.version.cuda


def test_tensors_on_the_cpu_have_the_null_stream():
    with cuda_support.on_device(torch.zeros(1)):
        assert cuda_support.stream(torch.zeros(1)) == 0
