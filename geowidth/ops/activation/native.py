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
        scalar, threads = SCALARS[up.dtype], torch.get_num_threads()
        native()[0].ffn_activation_forward(scalar, function.code, gate, up, hidden, threads)

    @staticmethod
    def backward(function, gate, up, grad_hidden, grad_gate, grad_up, hidden):
        """As TorchElementwise.backward; every matrix has unit column stride."""
        gradients = grad_hidden, grad_gate, grad_up
        scalar, threads = SCALARS[up.dtype], torch.get_num_threads()
        native()[0].ffn_activation_backward(scalar, function.code, gate, up, hidden, *gradients, threads)
