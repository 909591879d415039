"""GGUF files, walked with every count, length and offset checked against the file before anything is read by it.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Versions 2 and 3, little-endian. The package gguf
knows the types of tensors and how to dequantise them; its own reader believes what a file says of itself.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from geowidth.errors import UserError

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MOST_DIMENSIONS = 4  # ggml's limit
MOST_TEXTS = 2**24  # in one array; vocabularies hold some 2**18
LEAST_FIELD, LEAST_TENSOR = 13, 24  # bytes: of the shortest key and value, and of the shortest entry of a tensor


class Damaged(ValueError):
    """What is wrong with a file, to be told with its path."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: its name, the gguf package's type, shape (slowest axis first), first byte and size."""

    name: str
    kind: object
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True)
class GGUFFile:
    """An opened file.

    fields    {key: value}, with numpy arrays of numbers and lists of texts
    entries   its tensors
    """

    path: Path
    fields: dict
    entries: tuple[TensorEntry, ...]

    def tensor(self, entry):
        """The values of an entry, float32, in its shape."""
        import gguf

        data = np.fromfile(self.path, np.uint8, entry.size, offset=entry.start)
        # Blocks lie along the fastest axis, so rows of bytes are what the package dequantises.
        rows = data.reshape(*entry.shape[:-1], -1) if entry.size else data
        plain = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}
        plain[gguf.GGMLQuantizationType.F64] = np.float64
        if entry.kind in plain:
            return rows.view(plain[entry.kind]).astype(np.float32).reshape(entry.shape)
        try:
            return gguf.quants.dequantize(rows, entry.kind).astype(np.float32).reshape(entry.shape)
        except NotImplementedError as error:
            raise UserError(f"{self.path}: tensor {entry.name} has type {entry.kind.name}, not read") from error


def open_gguf(path):
    """The GGUFFile at a path.

    Raises UserError, in one line, for a file that is missing, truncated, or says of itself what does not fit it.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise UserError("reading GGUF needs the package gguf; install it with pip install 'geowidth[gguf]'") from error
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            fields, entries = _Walk(data).whole()
    except (Damaged, ValueError) as error:  # an empty file cannot be mapped: ValueError
        raise UserError(f"{path} is no whole GGUF file ({error})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return GGUFFile(path, fields, entries)


class _Walk:
    """A place in a file, moved on by reading."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def whole(self):
        """(fields, entries) of the file."""
        if self.data[:4] != MAGIC:
            raise Damaged("it does not begin with GGUF")
        self.at = 4
        version = self.number("I")
        if version not in VERSIONS:
            raise Damaged(f"version {version}; read are {VERSIONS[0]} and {VERSIONS[1]}, little-endian")
        tensors, fields = self.number("Q"), self.number("Q")
        self.room("tensors", tensors, LEAST_TENSOR)
        self.room("fields", fields, LEAST_FIELD)
        found = self.fields(fields)
        infos = [self.tensor_info() for _ in range(tensors)]
        return found, self.entries(infos, _alignment(found))

    def room(self, what, count, each):
        """Refuse more of something than the rest of the file can hold."""
        left = len(self.data) - self.at
        if count * each > left:
            raise Damaged(f"{count} {what} are announced, and {left} bytes follow")

    def number(self, code):
        size = struct.calcsize(f"<{code}")
        if self.at + size > len(self.data):
            raise Damaged(f"it ends at byte {len(self.data)}, inside a number")
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += size
        return value

    def string(self):
        length = self.number("Q")
        self.room("bytes of text", length, 1)
        self.at += length
        try:
            return self.data[self.at - length : self.at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise Damaged(f"a text at byte {self.at - length} is not UTF-8") from error

    def fields(self, count):
        found = {}
        for _ in range(count):
            key = self.string()
            if key in found:
                raise Damaged(f"field {key} comes twice")
            found[key] = self.value(self.number("I"), key)
        return found

    def value(self, kind, key):
        if kind == STRING:
            return self.string()
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind != ARRAY:
            raise Damaged(f"field {key} has unknown type {kind}")
        kind, count = self.number("I"), self.number("Q")
        if kind == STRING:
            self.room(f"texts in {key}", count, 8)
            if count > MOST_TEXTS:
                raise Damaged(f"{count} texts in {key}; allowed: {MOST_TEXTS}")
            return [self.string() for _ in range(count)]
        if kind not in SCALARS:
            raise Damaged(f"field {key} is an array of arrays or of unknown type {kind}")
        size = struct.calcsize(f"<{SCALARS[kind]}")
        self.room(f"values in {key}", count, size)
        self.at += count * size
        return np.frombuffer(self.data[self.at - count * size : self.at], f"<{SCALARS[kind]}")

    def tensor_info(self):
        """(name, shape with the fastest axis first, type, offset)."""
        name, count = self.string(), self.number("I")
        if not 1 <= count <= MOST_DIMENSIONS:
            raise Damaged(f"tensor {name} has {count} dimensions; allowed: 1 to {MOST_DIMENSIONS}")
        return name, [self.number("Q") for _ in range(count)], self.number("I"), self.number("Q")

    def entries(self, infos, alignment):
        """The TensorEntries, each within the file and apart from all others."""
        begin = -(-self.at // alignment) * alignment
        entries = tuple(self.entry(begin, alignment, *info) for info in infos)
        names = set()
        for entry in entries:
            if entry.name in names:
                raise Damaged(f"tensor {entry.name} comes twice")
            names.add(entry.name)
        placed = sorted((entry for entry in entries if entry.size), key=lambda entry: entry.start)
        for one, other in zip(placed, placed[1:], strict=False):
            if one.start + one.size > other.start:
                raise Damaged(f"tensors {one.name} and {other.name} overlap")
        return entries

    def entry(self, begin, alignment, name, shape, kind, offset):
        import gguf

        try:
            kind = gguf.GGMLQuantizationType(kind)
        except ValueError:
            raise Damaged(f"tensor {name} has unknown type {kind}") from None
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if shape[0] % block:
            raise Damaged(f"tensor {name} has rows of {shape[0]}; those of {kind.name} hold multiples of {block}")
        size *= math.prod(shape) // block
        if offset % alignment or begin + offset + size > len(self.data):
            raise Damaged(
                f"tensor {name} takes {size} bytes at {begin + offset} of {len(self.data)}, at steps of {alignment}"
            )
        return TensorEntry(name, kind, tuple(reversed(shape)), begin + offset, size)


def _alignment(fields):
    alignment = fields.get("general.alignment", 32)
    whole = isinstance(alignment, int) and not isinstance(alignment, bool) and alignment > 0
    if not whole or alignment & (alignment - 1):
        raise Damaged(f"general.alignment is {alignment!r}; allowed: powers of two")
    return alignment
