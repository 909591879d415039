"""Tensors whose elements start as NaN and stand between guard zones: what kernels leave out, and what they write
beside, shows."""

import contextlib
import math

import torch

GUARD_BYTES = 256  # before and after; a multiple of every alignment a kernel may count on
GUARD = 0x5C
POISON = 0xFF  # NaN as a number of any floating type, -1 as an integer, 255 as a byte


class Guarded:
    """Makes guarded tensors and knows them all."""

    def __init__(self):
        self.whole = []

    def empty(self, *shape, dtype=torch.float32):
        """A contiguous CPU tensor of that shape."""
        shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        count = math.prod(shape) * dtype.itemsize
        whole = torch.full((count + 2 * GUARD_BYTES,), GUARD, dtype=torch.uint8)
        inner = whole[GUARD_BYTES : GUARD_BYTES + count]
        inner.fill_(1 if dtype is torch.bool else POISON)
        self.whole.append(whole)
        return inner.view(dtype).view(shape)

    def like(self, tensor):
        """A guarded copy of a tensor or an array."""
        tensor = torch.as_tensor(tensor)
        return self.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)

    def check(self):
        """Fails if a guard zone was written to."""
        for whole in self.whole:
            for zone, name in ((whole[:GUARD_BYTES], "before"), (whole[-GUARD_BYTES:], "after")):
                wrong = (zone != GUARD).nonzero()
                assert not len(wrong), (
                    f"something was written {name} a tensor of {len(whole) - 2 * GUARD_BYTES} bytes: "
                    f"{len(wrong)} bytes, the first at {int(wrong[0])} of {GUARD_BYTES}"
                )

    @contextlib.contextmanager
    def allocations(self):
        """Inside, torch.empty and its kin give guarded tensors for contiguous CPU ones of plain dtypes."""
        empty, empty_like, new_empty = torch.empty, torch.empty_like, torch.Tensor.new_empty

        def plain(options):
            device, dtype = options.get("device"), options.get("dtype")
            other = set(options) - {"device", "dtype"}
            return not other and (device is None or torch.device(device).type == "cpu") and not dtype_is_odd(dtype)

        def dtype_is_odd(dtype):
            return dtype is not None and dtype.is_complex

        def guarded_empty(*shape, **options):
            if not plain(options) or not shape:
                return empty(*shape, **options)
            return self.empty(*shape, dtype=options.get("dtype") or torch.get_default_dtype())

        def guarded_empty_like(tensor, **options):
            if not plain(options) or not tensor.is_contiguous() or tensor.device.type != "cpu":
                return empty_like(tensor, **options)
            return self.empty(tensor.shape, dtype=options.get("dtype") or tensor.dtype)

        def guarded_new_empty(tensor, *shape, **options):
            if not plain(options) or tensor.device.type != "cpu":
                return new_empty(tensor, *shape, **options)
            return self.empty(*shape, dtype=options.get("dtype") or tensor.dtype)

        torch.empty, torch.empty_like, torch.Tensor.new_empty = guarded_empty, guarded_empty_like, guarded_new_empty
        try:
            yield
        finally:
            torch.empty, torch.empty_like, torch.Tensor.new_empty = empty, empty_like, new_empty
