"""The elementwise op by Triton kernels; also in Triton's interpreter, on CPU tensors."""

import torch


class TritonElementwise:
    """The Triton kernels of kernels/triton/activation.py."""

    @staticmethod
    def forward(function, gate, up, hidden):
        """As TorchElementwise.forward; every matrix has unit column stride."""
        from geowidth.kernels import activation

        with torch.cuda.device_of(up):
            activation.forward(function.code, gate, up, hidden)

    @staticmethod
    def backward(function, gate, up, grad_hidden, grad_gate, grad_up, hidden):
        """As TorchElementwise.backward; every matrix has unit column stride."""
        from geowidth.kernels import activation

        with torch.cuda.device_of(up):
            activation.backward(function.code, gate, up, grad_hidden, grad_gate, grad_up, hidden)
