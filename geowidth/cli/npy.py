"""Files of one array (.npy): read whole or refused in one line, written into space that is claimed first.

The format is numpy's (numpy.lib.format): a header with dtype, order and shape, then the numbers.
"""

import contextlib
import math
import os
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from geowidth import files, memory
from geowidth.errors import UserError

_MAGIC, _ZIP = b"\x93NUMPY", b"PK"


def read_npy(path):
    """The array of a .npy file in the dtype and order it has there; nothing is ever unpickled.

    Raises UserError for a missing, empty or damaged file, an archive, objects, and a header whose shape the file does
    not hold or the memory cannot take.
    """
    if not files.exists(path):
        files.read_bytes(path)  # says why not
    try:
        with open(path, "rb") as file:
            shape, fortran, dtype = _header(path, file)
            return _numbers(path, file, shape, fortran, dtype)
    except OSError as error:
        raise UserError(f"cannot read {path}: {files.reason(error)}") from error


def _header(path, file):
    """(shape, fortran order, dtype) of an open file, which then stands before its numbers."""
    start = file.read(len(_MAGIC))
    if start != _MAGIC:
        raise UserError(f"{path} {_what_else(start)}; write one array with numpy.save")
    file.seek(0)
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"it has format version {version[0]}.{version[1]}, for named fields")
        shape, fortran, dtype = read(file)
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError, OverflowError) as error:
        words = " ".join(str(error).split())[:100]
        raise UserError(f"{path} has a damaged header ({words}); write it again with numpy.save") from error
    if any(isinstance(n, bool) or n < 0 for n in shape):
        raise UserError(f"{path} has a damaged header (shape {shape}); write it again with numpy.save")
    return shape, fortran, dtype


def _what_else(start):
    if not start:
        return "is empty"
    return "is an archive of arrays, not one array" if start.startswith(_ZIP) else "is not a .npy file"


def _numbers(path, file, shape, fortran, dtype):
    """The numbers that follow the header, once the file is known to hold them."""
    if dtype.hasobject:
        raise UserError(f"{path} holds Python objects, which are never read; write an array of numbers")
    count = math.prod(shape)
    size, there = count * dtype.itemsize, os.fstat(file.fileno()).st_size - file.tell()
    if size > there:
        raise UserError(
            f"{path} is cut short: {dtype} of shape {shape} takes {size:,} bytes and {there:,} are there; "
            "write it again with numpy.save"
        )
    memory.check(f"reading {path}", size, "give fewer rows")
    if not size:
        return np.empty(shape, dtype)
    flat = np.fromfile(file, dtype, count)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def write_npy(path, array):
    """Write an array aside, then rename it into place. Raises UserError when it cannot be written."""
    array = np.asarray(array)
    with filling(path, array.shape, array.dtype) as target:
        target[...] = array


@contextlib.contextmanager
def filling(path, shape, dtype):
    """An array on the disk, to be filled in the block; the .npy file appears at `path` when the block ends well.

    Its bytes are claimed before the block begins, so it may be larger than memory, and a full disk is a UserError that
    names the bytes needed and free.
    """
    dtype, shape = np.dtype(dtype), tuple(map(int, shape))
    size = math.prod(shape) * dtype.itemsize
    with files.replacing(path, size) as file:
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(file, header)
        if not size:  # nothing to map
            yield np.empty(shape, dtype)
            return
        start = file.tell()
        files.reserve(file, start + size)
        file.flush()
        target = np.memmap(file, dtype, "r+", start, shape)
        yield target
        target.flush()
        del target


def check_npy_output(path):
    """Raise a UserError now if a .npy could not be written to `path` later."""
    if Path(path).suffix != ".npy":
        raise UserError(f"--out is {path}; name a .npy file")
    files.check_writable(path)
