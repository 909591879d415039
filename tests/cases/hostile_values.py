"""Arrays as callers hand them over, from a clean float64 array: those that mean its numbers, and those that do not."""

import tempfile
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from scipy import sparse


class SpeaksNumpy:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array if dtype is None else self.array.astype(dtype)


class SpeaksDlpack:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class FailsToConvert:
    def __array__(self, dtype=None, copy=None):
        raise OSError("the disk is gone")


def _read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def _mapped(array, mode):
    folder = Path(tempfile.mkdtemp())
    np.save(folder / "a.npy", array)
    return np.load(folder / "a.npy", mmap_mode=mode)


def _unaligned(array):
    records = np.zeros(array.shape, dtype=[("tag", "i1"), ("value", "f8")])
    records["value"] = array
    return records["value"]


def _spread(array):
    wide = np.full([2 * n + 1 for n in array.shape], np.nan)
    view = wide[tuple(slice(1, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def _overlapping(array):
    return torch.from_numpy(array.copy())[None].expand(3, *array.shape)[1]


def _negated(array):
    return torch._neg_view(torch.from_numpy(-array))


def _imaginary(array):
    return torch.complex(torch.from_numpy(array.copy()), torch.from_numpy(-array)).conj().imag


# Each means the same numbers as `array` (those of a narrow type, once rounded to it).
SAME = {
    "reversed": lambda a: np.flip(np.flip(a).copy()),
    "fortran": np.asfortranarray,
    "big-endian": lambda a: a.astype(">f8"),
    "big-endian reversed": lambda a: np.flip(np.flip(a).astype(">f8")),
    "big-endian float32": lambda a: a.astype(">f4"),
    "big-endian float16": lambda a: a.astype(">f2"),
    "big-endian uint16": lambda a: a.astype(">u2"),
    "big-endian int64": lambda a: a.astype(">i8"),
    "float16": lambda a: a.astype(np.float16),
    "float32": lambda a: a.astype(np.float32),
    "long double": lambda a: a.astype(np.longdouble),
    "int8": lambda a: a.astype(np.int8),
    "uint8": lambda a: a.astype(np.uint8),
    "uint16": lambda a: a.astype(np.uint16),
    "uint64": lambda a: a.astype(np.uint64),
    "bool": lambda a: a > 0,
    "read-only": _read_only,
    "read-only float32": lambda a: _read_only(a.astype(np.float32)),
    "mapped to read": lambda a: _mapped(a, "r"),
    "mapped big-endian": lambda a: _mapped(a.astype(">f4"), "r"),
    "mapped copy on write": lambda a: _mapped(a, "c"),
    "unaligned": _unaligned,
    "spread": _spread,
    "list": lambda a: a.tolist(),
    "tuple": lambda a: tuple(map(tuple, a.tolist())) if a.ndim == 2 else tuple(a.tolist()),
    "list of whole numbers": lambda a: a.astype(int).tolist(),
    "list of arrays": list,
    "list of float32 arrays": lambda a: list(a.astype(np.float32)),
    "numpy's protocol": SpeaksNumpy,
    "DLPack": lambda a: SpeaksDlpack(torch.from_numpy(a.copy())),
    "tensor": lambda a: torch.from_numpy(a.copy()),
    "transposed tensor": lambda a: torch.from_numpy(a.T.copy()).T,
    "overlapping tensor": _overlapping,
    "negated tensor": _negated,
    "imaginary part": _imaginary,
    "parameter": lambda a: torch.nn.Parameter(torch.from_numpy(a.copy())),
    "tensor with history": lambda a: torch.from_numpy(a.copy()).requires_grad_() * 1,
    "bfloat16 tensor": lambda a: torch.from_numpy(a.copy()).bfloat16(),
    "float16 tensor": lambda a: torch.from_numpy(a.copy()).half(),
    "int32 tensor": lambda a: torch.from_numpy(a.copy()).int(),
    "uint16 tensor": lambda a: torch.from_numpy(a.copy()).to(torch.uint16),
    "bool tensor": lambda a: torch.from_numpy(a > 0),
    "inference tensor": lambda a: torch.inference_mode()(lambda: torch.from_numpy(a.copy()) * 1)(),
}

# Each is refused, by every op.
NOTHING = {
    "complex": lambda a: a.astype(complex),
    "complex tensor": lambda a: torch.from_numpy(a.astype(np.complex64)),
    "list of complex": lambda a: a.astype(complex).tolist(),
    "sparse tensor": lambda a: torch.from_numpy(a.copy()).to_sparse(),
    "sparse csr": lambda a: torch.from_numpy(np.atleast_2d(a)).to_sparse_csr(),
    "scipy's sparse": lambda a: sparse.csr_array(np.atleast_2d(a)),
    "mkldnn": lambda a: torch.from_numpy(a.astype(np.float32)).to_mkldnn(),
    "meta": lambda a: torch.from_numpy(a.copy()).to("meta"),
    "float8": lambda a: torch.from_numpy(a.copy()).to(torch.float8_e4m3fn),
    "float8 with more range": lambda a: torch.from_numpy(a.copy()).to(torch.float8_e5m2),
    "quantised": lambda a: torch.quantize_per_tensor(torch.from_numpy(a.copy()).float(), 1.0, 0, torch.quint8),
    "nested": lambda a: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda a: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "masked": lambda a: np.ma.array(a, mask=a > 1),
    "masked tensor": lambda a: torch.masked.masked_tensor(torch.from_numpy(a.copy()), torch.from_numpy(a > 1)),
    "lazy parameter": lambda a: torch.nn.parameter.UninitializedParameter(),
    "objects": lambda a: a.astype(object),
    "text": lambda a: a.astype(str),
    "bytes": lambda a: a.astype(bytes),
    "dates": lambda a: a.astype("M8[D]"),
    "records": lambda a: a.astype([("value", "f8")]),
    "ragged": lambda a: [[1.0, 2.0], [3.0]],
    "list with None": lambda a: [None, *a.tolist()],
    "list of text": lambda a: a.astype(str).tolist(),
    "fractions": lambda a: [Fraction(1, 2)],
    "word": lambda a: "matrix.npy",
    "mapping": lambda a: {"x": a},
    "generator": lambda a: (row for row in a),
    "function": lambda a: np.linalg.norm,
    "a type": lambda a: float,
    "fails to convert": lambda a: FailsToConvert(),
    "no axes": lambda a: 3.0,
    "four axes": lambda a: np.ones((1, 1, 1, 1)),
    "beyond float64's integers": lambda a: np.full(a.shape, 2**53 + 1),
    "beyond float64's integers, unsigned": lambda a: torch.from_numpy(np.full(a.shape, 2**64 - 1, dtype=np.uint64)),
    "beyond float64's range": lambda a: np.full(a.shape, np.longdouble("1e4000")),
    "beyond int64": lambda a: [2**70],
}


def made(table, name, array):
    """The value of that name; what a library says while making it is not the op's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return table[name](array.copy())


def plain(value):
    """The numbers of a value out of SAME, as float64 in memory of their own."""
    if isinstance(value, SpeaksDlpack):
        value = value.tensor
    if isinstance(value, torch.Tensor):
        return value.detach().resolve_neg().double().numpy().copy()
    return np.array(value.array if isinstance(value, SpeaksNumpy) else value, dtype=np.float64)


# Values for arguments of one number, one choice or one switch.
SCALARS = {
    "half": 1.5, "zero": 0, "minus one": -1, "true": True, "digits": "2", "text": "x", "empty": "", "NaN": float("nan"),
    "infinity": float("inf"), "list": [1], "mapping": {"a": 1}, "array": np.array([1.0, 2.0]), "complex": 1j,
    "vast": 10**400, "tensor": torch.ones(2), "none": None, "object": object(), "4000": 4000, "bytes": b"1",
    "set": {1}, "numpy bool": np.True_, "one": np.int64(1), "a type": int,
}  # fmt: skip
# What no argument takes for a number, and what none takes for a name or a switch.
NO_NUMBER = (
    "true",
    "digits",
    "text",
    "empty",
    "NaN",
    "list",
    "mapping",
    "array",
    "complex",
    "tensor",
    "object",
    "bytes",
    "set",
)
NO_NUMBER += ("numpy bool", "a type")
NO_NAME = tuple(set(SCALARS) - {"none"})
NO_SWITCH = tuple(set(SCALARS) - {"true", "numpy bool"})
