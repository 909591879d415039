"""How fast a training is: tokens a second, and its share of what the device could do at best (MFU).

MFU (Chowdhery et al. 2022): the FLOPs that the model needs (training_flops: nothing computed twice
counts) in a second, over the device's peak in dense bfloat16 products. Where the peak is not known, nothing is said.
"""

import torch

# Dense bfloat16 products with float32 sums, FLOP/s, from NVIDIA's data sheets (half of what they print "with sparsity")
# and, for the RTX cards, from the white papers of their architectures. The first whose
# words are all in the device's name counts.
PEAKS = (
    ("B200", 2250e12),
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("GH200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("A40", 150e12),
    ("A30", 165e12),
    ("A10", 125e12),
    ("RTX 4090", 165e12),
    ("RTX 3090", 71e12),
)


def peak_flops(device: torch.device, dtype: str) -> float | None:
    """The peak of `device` for products in `dtype`, FLOP/s; None where it is not known (CPUs, float32)."""
    if device.type != "cuda" or dtype != "bfloat16":
        return None
    words = torch.cuda.get_device_name(device).replace("-", " ").split()
    if "Laptop" in words:
        return None
    return next((peak for part, peak in PEAKS if set(part.split()) <= set(words)), None)


def utilisation(flops: float, seconds: float, peak: float | None, devices: int = 1) -> float | None:
    """MFU, from 0 to 1: `flops` in `seconds` on `devices` of that peak; None where the peak is not known."""
    return None if peak is None or seconds <= 0 else flops / seconds / (peak * devices)
