"""Who computes a feed-forward layer on which device: see geowidth.ops.backend."""

import torch

from geowidth.ops import triton_support
from geowidth.ops.activation.native import NativeElementwise
from geowidth.ops.activation.torch import TorchElementwise
from geowidth.ops.backend import Backend, Operation, why_not_native
from geowidth.ops.feed_forward import library as ffn_library


class LibraryImplementation:
    """Library products around one elementwise implementation."""

    def __init__(self, elementwise):
        self.elementwise = elementwise

    def forward(self, problem, keep):
        """See ffn_library.forward."""
        with ffn_library.float32_products(problem.x, problem.input_precision):
            return ffn_library.forward(problem, self.elementwise, keep)

    def backward(self, problem, grad_y, g, u, needs):
        """See ffn_library.backward."""
        with ffn_library.float32_products(problem.x, problem.input_precision):
            return ffn_library.backward(problem, grad_y, g, u, needs, self.elementwise)


class TritonImplementation:
    """Fused Triton kernels where the tile table says so, library products elsewhere; loaded on first use."""

    @staticmethod
    def forward(problem, keep):
        """See ffn_library.forward."""
        from geowidth.ops.feed_forward import triton as ffn_triton

        with torch.cuda.device_of(problem.x), ffn_library.float32_products(problem.x, problem.input_precision):
            return ffn_triton.forward(problem, keep)

    @staticmethod
    def backward(problem, grad_y, g, u, needs):
        """See ffn_library.backward."""
        from geowidth.ops.feed_forward import triton as ffn_triton

        with torch.cuda.device_of(problem.x), ffn_library.float32_products(problem.x, problem.input_precision):
            return ffn_triton.backward(problem, grad_y, g, u, needs)


OPERATION = Operation(
    "ffn",
    [
        Backend("native", ("cpu",), LibraryImplementation(NativeElementwise), why_not_native),
        Backend("triton", ("cuda", "cpu"), TritonImplementation, triton_support.why_not),
        Backend("torch", ("cpu", "cuda"), LibraryImplementation(TorchElementwise)),
    ],
)
