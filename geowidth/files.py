"""Files: read whole or refused in one line; written aside, space claimed first, then renamed into place.

A process that is killed leaves its `.NAME.PID.tmp` beside NAME. The next writer of NAME removes it: the writer of such
a file holds a lock on it, so one that nobody holds, of a process that is gone, is left over.
"""

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from geowidth import memory
from geowidth.errors import UserError, shown

PathLike = str | os.PathLike[str]

# What a file system answers that cannot set space aside; then zeros are written instead.
_NO_RESERVING = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def reason(error: OSError) -> str:
    """Why an OSError came, in words."""
    return error.strerror or str(error)


def file_path(what: str, value: object) -> PathLike:
    """`value` if it is the path of a file, a text or a path object; anything else is refused."""
    if not isinstance(value, (str, os.PathLike)):
        raise UserError(f"{what} is {shown(value)}; give the path of a file")
    return value


def exists(path: PathLike) -> bool:
    """Whether a regular file is at `path`; a UserError for a folder or a pipe there, and for an impossible path."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    except ValueError as error:  # a zero byte in the path
        raise UserError(f"cannot read {str(path)!r}: {error}") from error
    if not stat.S_ISREG(mode):
        raise UserError(f"cannot read {path}: it is {_kind(mode)}, not a file")
    return True


def read_bytes(path: PathLike) -> bytes:
    """The bytes of a regular file. UserError for anything else: nothing is read that may block or never end."""
    if not exists(path):
        place = next((folder for folder in Path(path).parents if folder.is_file()), None)
        raise UserError(f"cannot read {path}: {f'{place} is a file, not a folder' if place else 'it does not exist'}")
    memory.check(f"reading {path}", os.path.getsize(path), "name a smaller file")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error


def read_text(path: PathLike) -> str:
    """The UTF-8 text of a regular file; UserError for anything else."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}") from error


def write_bytes(path: PathLike, data: bytes) -> None:
    """Write `data` beside `path`, bring it to the disk, then rename it into place. A failure leaves the old file."""
    with replacing(path, len(data)) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: PathLike, size: int | None = None) -> Iterator[IO[bytes]]:
    """A binary file, open for reading and writing, that takes the place of `path` when the block ends well.

    size: bytes it will have, named when there is no room. Raises UserError when it cannot be written; then, and when
    the block raises, the old file stays and nothing else is left.
    """
    path = Path(path)
    aside = path.with_name(_aside(path.name))
    try:
        _check_place(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path)
        try:
            with open(aside, "w+b") as file:
                lock(file)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise refusal(path, error, size) from error


def append(path: PathLike, data: bytes) -> None:
    """Add `data` to the file at `path`, on the disk when this returns. Raises UserError; then a part may be there."""
    try:
        with open(path, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise refusal(path, error, len(data)) from error


def refusal(path: PathLike, error: OSError, size: int | None = None) -> UserError:
    """The UserError for an OSError at writing `path`, with the bytes `size` it takes and those that are free."""
    if error.errno not in _FULL:
        return UserError(f"cannot write {path}: {reason(error)}; name a folder that can be written")
    free = free_bytes(path)
    needed = "" if size is None or free is None else f" ({size:,} bytes are needed, {free:,} are free)"
    return UserError(f"cannot write {path}: {reason(error)}{needed}; make room, or name a place on another disk")


def free_bytes(path: PathLike) -> int | None:
    """Bytes free for us on the disk that `path` is or will be on; None where the file system does not say."""
    folder = next((f for f in [Path(path), *Path(path).absolute().parents] if f.is_dir()), None)
    try:
        facts = None if folder is None else os.statvfs(folder)
    except (OSError, AttributeError):
        return None
    return facts.f_bavail * facts.f_frsize if facts and facts.f_blocks else None


def reserve(file: IO[bytes], size: int) -> None:
    """Give an open file `size` bytes that are there, so that a full disk is an OSError here.

    A file that is only said to be long is filled when its memory map is written, and a full disk then kills the
    process (SIGBUS).
    """
    free = free_bytes(file.name)
    if free is not None and size > free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except AttributeError:  # a system without it
        _write_zeros(file, size)
    except OSError as error:
        if error.errno not in _NO_RESERVING:
            raise
        _write_zeros(file, size)


def _write_zeros(file, size):
    """Fill `file` from where it stands to `size` bytes."""
    zeros = bytes(min(size, 1 << 20))
    while (left := size - file.tell()) > 0:
        file.write(zeros[:left])
    file.flush()


def check_writable(path: PathLike) -> None:
    """Raise a UserError now, before hours of work, if a file `path` could not be written later.

    Leaves no trace, and removes what a killed process left beside `path`.
    """
    path = Path(path)
    try:
        _check_place(path)
        folder = next(f for f in path.absolute().parents if f.exists())
        _try_to_write(folder, path.absolute().relative_to(folder).parts)
        sweep(path)
    except OSError as error:
        raise refusal(path, error) from error


def _check_place(path):
    """Refuse what a file cannot take the place of, and a place that is inside a file."""
    if "\0" in str(path):
        raise UserError(f"cannot write {str(path)!r}: it holds a zero byte; name a file")
    if path.exists() and not path.is_file():
        raise UserError(f"cannot write {path}: it is {_kind(path.stat().st_mode)}; name a file")
    folder = next(f for f in path.absolute().parents if f.exists())
    if not folder.is_dir():
        raise UserError(f"cannot write {path}: {folder} is a file, not a folder; name a folder that can be written")
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"cannot write {path}: no permission to replace it; name a folder that can be written")


def _try_to_write(folder, parts):
    """Make and remove a file as `replacing` does: asking for permissions misses read-only and special file systems."""
    longest = os.pathconf(folder, "PC_NAME_MAX") if hasattr(os, "pathconf") else 255
    if any(len(os.fsencode(name)) > longest for name in (*parts[:-1], _aside(parts[-1]))):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    aside = folder / _aside(parts[0])
    aside.touch()
    aside.unlink()


def _kind(mode):
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def _aside(name):
    return f".{name}.{os.getpid()}.tmp"


def sweep(path: PathLike) -> None:
    """Remove the temporary files and folders of `path` that processes left behind which are gone."""
    path = Path(path)
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.tmp")
    with contextlib.suppress(OSError):
        for found in list(os.scandir(path.parent)):
            match = pattern.fullmatch(found.name)
            if match and not _alive(match[1]) and _left_over(found):
                with contextlib.suppress(OSError):
                    shutil.rmtree(found) if found.is_dir(follow_symlinks=False) else os.unlink(found)


def _alive(pid):
    """Whether a process `pid` runs on this machine; where that cannot be told, True."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is there, and another user's
        return True
    return True


def _left_over(entry):
    """Whether nobody holds the lock on a temporary file or folder: a writer on another machine, say."""
    if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
        return False
    with holding(entry) as free:
        return free


@contextlib.contextmanager
def holding(path: PathLike) -> Iterator[bool]:
    """Hold the lock of a file or folder while it is filled; gives whether it was free."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield lock(descriptor)
    finally:
        os.close(descriptor)


def lock(file: IO[bytes] | IO[str] | int) -> bool:
    """Take the lock of an open file without waiting; False if another holds it.

    Where there are no such locks: always True.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
