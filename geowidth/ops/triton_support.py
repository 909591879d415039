"""Whether Triton kernels can run here, found out without touching a driver until a CUDA tensor asks."""

import os
from functools import cache


def interpreted():
    """Whether Triton's interpreter was asked for: TRITON_INTERPRET=1, set before the first import of triton."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def why_not(device_type="cuda", dtype=None, **_):
    """None when Triton kernels can serve tensors of this device type and torch dtype, else a sentence."""
    reason = _not_importable()
    if reason or interpreted():
        return reason
    if device_type != "cuda":
        return "Triton kernels run on CUDA devices; on the CPU only in Triton's interpreter (TRITON_INTERPRET=1)"
    if str(dtype) == "torch.float64":
        return "the Triton kernels take float32, bfloat16 and float16, not float64"
    return _no_gpu()


def why_not_cuda(**_):
    """None when Triton kernels that take every float type can serve CUDA tensors, else a sentence."""
    return why_not("cuda")


def why_not_cpu(**_):
    """None in Triton's interpreter, which serves CPU tensors, else a sentence."""
    return why_not("cpu")


def processors(tensor):
    """Multiprocessors of the tensor's GPU; a few in the interpreter, so that work is shared there too."""
    if not tensor.is_cuda:
        return 3
    import torch

    return torch.cuda.get_device_properties(tensor.device).multi_processor_count


@cache
def _not_importable():
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"Triton is not importable ({error}); pip install triton"
    return None


@cache
def _no_gpu():
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device is visible to torch"
    if torch.version.hip:
        return "the Triton kernels are built and tested for NVIDIA GPUs only"
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return f"the GPU has compute capability {major}.{minor}; the Triton kernels need 8.0 or newer"
    return None
