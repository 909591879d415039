"""The elementwise op in plain torch."""

import torch


class TorchElementwise:
    """Plain torch on any device: computed in float32 or wider, rounded to the storage type once."""

    @staticmethod
    def forward(function, gate, up, hidden):
        """hidden (rows, columns) = act(gate) * up, or act(up) when gate is None."""
        wide = torch.float64 if up.dtype == torch.float64 else torch.float32
        value = function.apply((up if gate is None else gate).to(wide))
        hidden.copy_(value if gate is None else value * up.to(wide))

    @staticmethod
    def backward(function, gate, up, grad_hidden, grad_gate, grad_up, hidden):
        """Fills grad_gate, grad_up and, unless None, hidden, which may be grad_hidden's own memory."""
        wide = torch.float64 if up.dtype == torch.float64 else torch.float32
        point, upward, gradient = (up if gate is None else gate).to(wide), up.to(wide), grad_hidden.to(wide)
        slope = function.slope(point) * gradient
        value = function.apply(point)
        if gate is None:
            grad_up.copy_(slope)
        else:
            grad_gate.copy_(slope * upward)
            grad_up.copy_(gradient * value)
            value = value * upward
        if hidden is not None:
            hidden.copy_(value)
