"""Copies from a GPU to the host that run beside its work."""

from functools import cache

import torch


class Transfer:
    """A tensor on its way to the host. `wait()` returns it there, once.

    From a CUDA device: a copy into pinned memory on a stream of its own, which begins when the work enqueued so far is
    done; kernels enqueued afterwards, and the host, go on meanwhile. A tensor that lies on the host is passed through.
    The tensor may be freed at once; it must not be overwritten before `wait` returns.
    """

    def __init__(self, tensor):
        self.tensor, self.arrived = tensor.detach(), None
        if not tensor.is_cuda:
            return
        side = _side_stream(tensor.device)
        with torch.cuda.device(tensor.device):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                self.tensor.copy_(tensor.detach(), non_blocking=True)
                self.arrived = torch.cuda.Event(blocking=True)
                self.arrived.record(side)
        tensor.record_stream(side)

    def wait(self):
        """The tensor on the host. Other Python threads run while this one waits."""
        if self.arrived is not None:
            self.arrived.synchronize()
        tensor, self.tensor = self.tensor, None
        return tensor


@cache
def _side_stream(device):
    return torch.cuda.Stream(device)
