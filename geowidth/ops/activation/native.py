"""The elementwise op compiled for the CPU."""

import torch

from geowidth.ops.backend import native

# Numbered as `Scalar` in csrc/cpu/ffn_activation.h.
SCALARS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


class NativeElementwise:
    """The vectorised C++ of csrc/cpu/ffn_activation.simd.cpp on torch.get_num_threads() threads."""

    @staticmethod
    def forward(function, gate, up, hidden):
        """As TorchElementwise.forward; every matrix has unit column stride."""
        native()[0].ffn_activation_forward(
            SCALARS[up.dtype], function.code, *up.shape, _place(gate), _place(up), _place(hidden),
            torch.get_num_threads(),
        )  # fmt: skip

    @staticmethod
    def backward(function, gate, up, grad_hidden, grad_gate, grad_up, hidden):
        """As TorchElementwise.backward; every matrix has unit column stride."""
        native()[0].ffn_activation_backward(
            SCALARS[up.dtype], function.code, *up.shape, _place(gate), _place(up), _place(grad_hidden),
            _place(grad_gate), _place(grad_up), _place(hidden), torch.get_num_threads(),
        )  # fmt: skip


def _place(matrix):
    """(address, row stride) of a matrix for the native code; (0, 0) for None."""
    return (0, 0) if matrix is None else (matrix.data_ptr(), matrix.stride(0) if matrix.shape[0] > 1 else 0)
