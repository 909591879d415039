"""The precision of the library's matrix products: which dtype a CPU multiplies in, and TF32 on a GPU."""

from contextlib import contextmanager, nullcontext
from functools import cache

import torch


@cache
def has_native_product(dtype):
    """Whether this processor multiplies matrices of a two-byte dtype with instructions made for it."""
    if dtype == torch.bfloat16:
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def product_dtype(x, device=None):
    """The dtype in which the library multiplies x (on device type `device`, by default its own)."""
    on_cpu = (device or x.device.type) == "cpu"
    if on_cpu and x.dtype in (torch.bfloat16, torch.float16) and not has_native_product(x.dtype):
        return torch.float32
    return x.dtype


def float32_products(x, input_precision):
    """A context: the library's float32 products on a GPU at this precision, whatever the process-wide switch says."""
    if x.dtype != torch.float32 or x.device.type != "cuda":
        return nullcontext()
    return matmul_switch(input_precision == "tf32")


@contextmanager
def matmul_switch(tf32):
    """Torch's own switch for float32 products on a GPU, on or off, and back to what it was."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # the older name may not be touched where the newer one was set
        name, value = "fp32_precision", "tf32" if tf32 else "ieee"
    else:
        name, value = "allow_tf32", tf32
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)
