"""Whether geowidth._cuda can serve here, and on which device and stream its kernels run."""

import contextlib

import torch

from geowidth.ops import backend


def why_not(**_):
    """None, or a sentence: geowidth._cuda was not built, or there is no GPU that torch can use."""
    reason = backend.cuda()[1]
    if reason is None and not torch.cuda.is_available():
        reason = "torch sees no CUDA GPU; use a machine with one and a torch built for CUDA"
    return reason


def stream(tensor):
    """The current stream of the tensor's device, as an integer; 0 where the tensor lies on the CPU (tests)."""
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0


def on_device(tensor):
    """A context in which the tensor's device is the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
