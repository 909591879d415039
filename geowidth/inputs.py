"""Arrays at the border: what a caller or a file hands over becomes a plain tensor of floats, or is refused by name.

One set of rules for every op and command:

    float16, bfloat16, float32, float64   stay what they are, on their device
    integers, bool                        float64; refused where float64 cannot hold an entry (beyond 2^53)
    long double                           float64; refused where an entry lies beyond its range
    lists, tuples, other sequences        float64
    pandas, xarray, DLPack and others     what they give numpy or torch, then as above
    any byte order and strides, read-only memory, memory maps, lazy negation: the same numbers, copied where needed

Refused, each in one line that names the argument: None, complex and 8-bit floats (their scale lies elsewhere), sparse,
nested, masked, quantised and meta tensors, objects, text, dates, records, ragged lists.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from geowidth.errors import UserError, shown


class SupportsDLPack(Protocol):
    """An array of another library that hands over its memory by DLPack."""

    def __dlpack__(self) -> Any: ...


ArrayLike = torch.Tensor | npt.ArrayLike | SupportsDLPack

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
ALLOWED = "float16, bfloat16, float32, float64, integers, bool"


def tensor(name: str, value: ArrayLike, axes: Sequence[str] | None = None, dispatched: bool = False) -> torch.Tensor:
    """`value` as a strided tensor of one of FLOATS. A tensor keeps its device and its gradient, all else is on the CPU.

    name         of the argument, for messages
    axes         names of the axes, as ("n", "d"): as many are needed; None for any number
    dispatched   see `dense`
    """
    if not isinstance(value, torch.Tensor):
        value = _from_other(name, value)
    made = _widened(name, dense(name, value, dispatched))
    if axes is not None and made.ndim != len(axes):
        raise UserError(f"{name} has shape {tuple(made.shape)}; needed: {len(axes)} axes ({', '.join(axes)})")
    return made


def numbers_on(name: str, value: ArrayLike, device: torch.device) -> torch.Tensor:
    """`value` as a float64 tensor of its own on `device`, without a gradient; moved there from the CPU alone."""
    made = tensor(name, value).detach()
    if made.device.type != "cpu" and made.device != device:
        raise UserError(f"{name} is on {made.device}; move it to {'the CPU' if device.type == 'cpu' else device}")
    return made.to(device, torch.float64, copy=True, memory_format=torch.contiguous_format)


def array(name: str, value: ArrayLike, axes: Sequence[str] | None = None) -> np.ndarray:
    """`value` as a numpy array in this machine's byte order: float16, float32 or float64 (bfloat16 becomes float32)."""
    made = tensor(name, value, axes).detach().cpu()
    return (made.float() if made.dtype == torch.bfloat16 else made).numpy()


def floating(name: str, value: torch.Tensor, dispatched: bool = False) -> torch.Tensor:
    """`value` if it is a tensor of one of FLOATS whose numbers lie in memory as they read, else a UserError."""
    if not isinstance(value, torch.Tensor):
        raise UserError(f"{name} is {type(value).__name__}; needed: a tensor")
    if value.dtype not in FLOATS:
        raise UserError(f"{name} is {short(value.dtype)}; allowed: {', '.join(map(short, FLOATS))}")
    return dense(name, value, dispatched)


def dense(name: str, value: torch.Tensor, dispatched: bool = False) -> torch.Tensor:
    """The tensor `value` if its numbers lie in memory as they read, else a UserError that says what it is.

    dispatched   whether torch's dispatcher will see it: types that compute in Python (fake, distributed) may come then
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        _refuse_type(name, value, dispatched)
    if value.layout != torch.strided or value.is_nested or value.is_quantized or value.is_meta:
        raise UserError(f"{name} is {_without_numbers(value)}")
    return value if torch.compiler.is_compiling() else value.resolve_neg()


def _refuse_type(name, value, dispatched):
    if torch.nn.parameter.is_lazy(value):
        raise UserError(f"{name} is not initialised; run its module once")
    computes = type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if computes and (not dispatched or type(value).__module__.startswith("torch.masked")):
        raise UserError(f"{name} is a {type(value).__name__}; pass a plain torch.Tensor")


def _without_numbers(value):
    """What a tensor is whose memory is not its numbers, and what to do."""
    if value.is_nested:
        return "a nested tensor; call torch.nested.to_padded_tensor, or pass its parts"
    if value.layout != torch.strided:
        return f"sparse ({short(value.layout)}); call .to_dense()"
    if value.is_quantized:
        return f"quantised ({short(value.dtype)}); call .dequantize()"
    return "on the meta device, without numbers; pass a tensor with data"


def short(dtype: torch.dtype | torch.layout) -> str:
    """The name of a torch dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def refuse_entry(name: str, values: torch.Tensor, wrong: torch.Tensor, words: str) -> None:
    """Raise a UserError that names the first entry of `values` where the mask `wrong` holds, if there is one."""
    where = wrong.nonzero()
    if len(where):
        index = tuple(where[0].tolist())
        place = f"[{', '.join(map(str, index))}]" if index else ""
        raise UserError(f"{name}{place} is {values[index].item()}; {words}")


def _widened(name, value):
    """`value` in one of FLOATS. The conversion is torch's own, so that gradients flow back in the given dtype."""
    if value.dtype in FLOATS:
        return value
    if value.dtype not in INTEGERS:
        hint = "; its scale lies elsewhere: widen it, times the scale" if "float8" in str(value.dtype) else ""
        raise UserError(f"{name} is {short(value.dtype)}{hint}; allowed: {ALLOWED}")
    wide = value.double()
    if value.dtype in (torch.int64, torch.uint64) and _readable(value):
        _refuse_rounded(name, value, wide)
    return wide


def _readable(value):
    """Whether the numbers can be looked at here: not while a graph is recorded or transformed."""
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling()
    return plain and not torch._C._are_functorch_transforms_active()


def _refuse_rounded(name, value, wide):
    """Refuse 64-bit integers that are not what float64 makes of them."""
    if bool((wide.abs() < 2.0**53).all()):
        return
    whole = value.cpu().numpy()
    limit = 2.0 ** (63 if value.dtype == torch.int64 else 64)
    found = wide.cpu().numpy()
    beyond = found >= limit
    wrong = beyond | (np.where(beyond, 0, found).astype(whole.dtype) != whole)
    refuse_entry(name, value.cpu(), torch.from_numpy(wrong), "float64 cannot hold it: subtract an offset")


def _from_other(name, value):
    """A tensor of what is not one: numpy arrays, sequences, and whatever speaks DLPack or numpy's protocols."""
    if value is None:
        raise UserError(f"{name} is None; needed: an array or a tensor")
    if isinstance(value, np.ma.MaskedArray):
        raise UserError(f"{name} is a masked array; fill it first (.filled(...)), or drop what is masked")
    if hasattr(value, "toarray"):
        raise UserError(f"{name} is sparse ({type(value).__name__}); call .toarray()")
    if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__dlpack__"):
        try:
            return torch.from_dlpack(value)
        except Exception:  # whatever the other library raises: it may still speak numpy
            pass
    try:
        found = np.asarray(value)
    except Exception as error:
        raise UserError(f"{name} is {_kind(value)} and gives no array ({_line(error)}); allowed: {ALLOWED}") from error
    return _from_array(name, found, sequence=not hasattr(value, "dtype"))


def _from_array(name, found, sequence):
    kind = found.dtype.kind
    if kind not in "biuf":
        raise UserError(f"{name} is of dtype {_line(found.dtype)}; allowed: {ALLOWED}")
    if found.dtype.itemsize > 8 or (sequence and kind == "f"):
        found = _double(name, found)
    found = found.astype(found.dtype.newbyteorder("="), copy=False)
    # What torch cannot look at in place, or would warn of.
    steps = (s >= 0 and s % found.itemsize == 0 for s in found.strides)
    return torch.from_numpy(found if found.flags.writeable and found.flags.aligned and all(steps) else found.copy())


def _double(name, found):
    with np.errstate(over="ignore"):
        wide = found.astype(np.float64)
    beyond = np.argwhere(np.isfinite(found) & ~np.isfinite(wide))
    if len(beyond):
        index = tuple(beyond[0].tolist())
        raise UserError(f"{name}[{', '.join(map(str, index))}] is {found[index]!s}; float64 ends at 1.8e308")
    return wide


def _kind(value):
    return f"a {type(value).__name__}" if hasattr(value, "__len__") else shown(value)


def _line(words):
    text = " ".join(str(words).split())
    return text if len(text) <= 120 else f"{text[:120]}..."
