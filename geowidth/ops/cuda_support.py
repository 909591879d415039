"""Whether geowidth._cuda can serve here, and on which device and stream its kernels run."""

import contextlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from geowidth.ops import backend

LEAST_CAPABILITY = (7, 0)


@dataclass(frozen=True)
class Facts:
    """What decides whether the CUDA kernels can run: one machine, one device.

    missing: why geowidth._cuda cannot be imported, or None. torch_cuda: the CUDA version torch was built for, or None;
    hip: the same for AMD GPUs. driver: 1000 major + 10 minor of the newest CUDA that the driver serves, 0 without a
    driver, None if nobody can say; runtime: of the CUDA that geowidth._cuda was built with. visible: whether torch can
    use a GPU. capability: (major, minor) of the device. architectures: those that geowidth._cuda has machine code for,
    "80,90a"; ptx: the one whose PTX it keeps for newer GPUs, or "". cooperative: whether the device runs grids whose
    blocks wait for one another.
    """

    missing: str | None = None
    torch_cuda: str | None = "13.0"
    hip: str | None = None
    driver: int | None = 13000
    runtime: int = 13000
    visible: bool = True
    capability: tuple[int, int] = (9, 0)
    architectures: str = "80,90a,100"
    ptx: str = "100"
    cooperative: bool = True


def why_not(device_index=None, cooperative=False, **_):
    """None, or a sentence: why geowidth._cuda cannot serve CUDA device `device_index` (None: the current one).

    cooperative: whether the op needs grids whose blocks wait for one another.
    """
    return reason(_facts(device_index), cooperative)


def reason(facts, cooperative=False):
    """The sentence against `facts`, or None: a function of them alone, first things first."""
    return (
        _torch(facts)
        or _driver(facts)
        or (None if facts.visible else "torch sees no CUDA GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES")
        or facts.missing
        or _architecture(facts)
        or ("this GPU, as it is shared here, allows no cooperative launches" if _lacks(facts, cooperative) else None)
    )


def _torch(facts):
    if facts.hip:
        return "this torch is built for AMD GPUs; the CUDA kernels run on NVIDIA GPUs only"
    if not facts.torch_cuda:
        return "this torch is built without CUDA; install one that is (https://pytorch.org/get-started/locally)"
    return None


def _driver(facts):
    """The sentence against the driver, or None. Within one major version, older drivers run newer machine code."""
    if facts.driver is None:
        return None
    if facts.driver == 0:
        return "no NVIDIA driver was found; install one, and check it with nvidia-smi"
    major = facts.driver // 1000
    serves_only = f"the NVIDIA driver serves CUDA up to {release(facts.driver)}"
    if major < int(facts.torch_cuda.split(".")[0]) and not facts.visible:
        return f"{serves_only}, and this torch needs {facts.torch_cuda}; update the driver, or install a torch for it"
    if major < facts.runtime // 1000:
        built = f"geowidth._cuda was built with {release(facts.runtime)}"
        return f"{serves_only}, and {built}; update the driver, or reinstall with nvcc {major}"
    return None


def _architecture(facts):
    """The sentence against the device's compute capability, or None."""
    capability = "{}.{}".format(*facts.capability)
    if facts.capability < LEAST_CAPABILITY:
        return f"the GPU has compute capability {capability}; the CUDA kernels need 7.0 or newer"
    names = facts.architectures.split(",")
    if any(serves(name, facts.capability) for name in names):
        return None
    rebuild = "reinstall with nvcc and GEOWIDTH_CUDA_ARCHITECTURES={}{}".format(*facts.capability)
    if not facts.ptx or _numbers(facts.ptx) > facts.capability:
        return f"geowidth._cuda was built for {', '.join(names)}, and the GPU is {capability}; {rebuild}"
    if facts.driver < facts.runtime:
        ptx = f"the driver must compile the kernels for {capability} from PTX of CUDA {release(facts.runtime)}"
        return f"{ptx}, but serves CUDA up to {release(facts.driver)}; update the driver, or {rebuild}"
    return None


def _lacks(facts, cooperative):
    return cooperative and not facts.cooperative


def serves(architecture, capability):
    """Whether machine code for `architecture` ("80", "90a", "100f") runs on a device of `capability` (major, minor)."""
    number = _numbers(architecture)
    if architecture.endswith("a"):  # uses what only this one chip has
        return number == capability
    return number[0] == capability[0] and number[1] <= capability[1]


def _numbers(architecture):
    """ "100f" -> (10, 0)."""
    digits = architecture.rstrip("af")
    return (int(digits[:-1]), int(digits[-1])) if digits.isdecimal() and len(digits) > 1 else (0, 0)


def release(version):
    """13000 -> "13.0"."""
    return f"{version // 1000}.{version % 1000 // 10}"


@cache
def _facts(device_index):
    """The facts of this process and of one of its devices; asked of the driver once."""
    module, missing = backend.cuda()
    about: dict[str, Any] = {
        "missing": missing,
        "torch_cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "driver": None,
    }
    about["visible"] = torch.cuda.is_available()
    if module is not None:
        built = module.build_information()
        about |= {name: built[name] for name in ("architectures", "ptx", "runtime")}
        about["driver"] = module.driver_version()
        if about["visible"]:
            index = torch.cuda.current_device() if device_index is None else device_index
            about["capability"] = torch.cuda.get_device_capability(index)
            about["cooperative"] = module.cooperative_launch(index)
    return Facts(**about)


def stream(tensor):
    """The current stream of the tensor's device, as an integer; 0 where the tensor lies on the CPU (tests)."""
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0


def on_device(tensor):
    """A context in which the tensor's device is the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
