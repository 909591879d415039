"""geowidth._cuda for a machine without a GPU: the same sources, compiled as C++ against the headers beside this file.

Objects and modules are kept in the user's cache folder under a hash of everything that goes into them, so that only
the first session compiles, and sessions at once do not disturb each other.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests/emulator"
JOBS = 2
KEPT_DAYS = 14
COMMON = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", '-DGEOWIDTH_CUDA_ARCHITECTURES="emulator"']
COMMON += ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", f"-I{HERE}", "-Icsrc", "-Ikernels/cuda"]
UNDEFINED = ["-fsanitize=undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"]
STATISTICS = (
    "launches",
    "cooperative_launches",
    "blocks",
    "threads",
    "barriers",
    "collectives",
    "atomics",
    "switches",
    "shared_bytes",
)


def compiler():
    """The C++ compiler's words."""
    return shlex.split(os.environ.get("CXX", "c++"))


def binding_headers():
    """Folder of pybind11's headers: its own, else torch's copy of them (on machines that install nothing)."""
    try:
        import pybind11
    except ImportError:
        import torch

        return str(Path(torch.__file__).parent / "include")
    return pybind11.get_include()


def build(address_sanitizer=False):
    """Path of the extension module; with AddressSanitizer it loads only where that library was loaded first."""
    address = ["-fsanitize=address", "-fno-omit-frame-pointer"] if address_sanitizer else []
    python = ["-isystem", binding_headers(), "-isystem", sysconfig.get_paths()["include"]]
    engine = [*COMMON, "-O2", "-g1", *address]
    kernels = [*COMMON, "-O0" if address_sanitizer else "-O1", "-g1", *UNDEFINED, *address]
    jobs = [(source, kernels) for source in sources("kernels/cuda/*.cu", f"{HERE}/*.cu")]
    jobs += [(source, [*COMMON, "-O0", *python]) for source in sources("csrc/cuda/*.cpp")]
    jobs += [(source, engine) for source in sources(f"{HERE}/*.cpp")]
    headers = hash_of(*(path.read_bytes() for path in sorted(header_files())))
    with ThreadPoolExecutor(JOBS) as pool:
        objects = list(pool.map(lambda job: compiled(*job, headers), jobs))
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    shared += [*address, *(["-shared-libasan"] if address_sanitizer and is_clang() else [])]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    key = hash_of(*(path.name.encode() for path in objects), *(word.encode() for word in shared), suffix.encode())
    return kept(f"{key}/_cuda{suffix}", lambda out: call([*compiler(), *shared, *map(str, objects), "-o", out]))


def sources(*patterns):
    """Paths relative to the root, so that messages and the cache know nothing of this checkout's place."""
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def header_files():
    return [path for folder in ("csrc", "kernels/cuda", HERE) for path in (ROOT / folder).rglob("*.h")]


def compiled(source, flags, headers):
    """The object of one source file."""
    language = ["-x", "c++"] if source.endswith(".cu") else []
    key = hash_of(compiler_version().encode(), repr(flags).encode(), headers.encode(), (ROOT / source).read_bytes())
    return kept(
        f"{Path(source).name}-{key}.o", lambda out: call([*compiler(), *flags, *language, "-c", source, "-o", out])
    )


@cache
def compiler_version():
    return subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True).stdout


def is_clang():
    return "clang" in compiler_version()


def address_sanitizer_libraries():
    """What must be loaded first, in this order: AddressSanitizer's library, and the C++ one whose exceptions it
    follows. Empty where the compiler has none."""
    address = f"libclang_rt.asan-{platform.machine()}.so" if is_clang() else "libasan.so"
    found = [path for path in map(library, (address, "libstdc++.so.6")) if path]
    return found if library(address) else []


def library(name):
    """Path of one of the compiler's libraries, or None."""
    named = subprocess.run([*compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(named.stdout.strip())
    return path.resolve() if path.is_absolute() and path.exists() else None


def hash_of(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]


def call(command):
    """Runs a compiler in the root; its own words are the error."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}")


def cache_folder():
    """The folder of what was compiled; one for this process alone where the user's cannot be written."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geowidth" / "emulator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"geowidth-emulator-{os.getuid()}-{os.getpid()}"
        folder.mkdir(exist_ok=True)
    return folder


def kept(name, make):
    """The file of that name in the cache, made by `make(path)` aside and renamed if it is not there."""
    target = cache_folder() / name
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        with one_process_at_a_time(target):
            if not target.exists():
                aside = target.with_name(f"{os.getpid()}-{target.name}")
                make(aside)
                os.replace(aside, target)
    os.utime(target)
    return target


@contextlib.contextmanager
def one_process_at_a_time(target):
    """Sessions side by side (pytest -n) share the compiling: one makes a file, the others wait for it."""
    with open(target.with_name(f"{target.name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def forget_old():
    """Removes what no session used for two weeks."""
    limit = time.time() - KEPT_DAYS * 86400
    for path in cache_folder().iterdir():
        with contextlib.suppress(OSError):  # another session may be removing the same
            if max(p.stat().st_mtime for p in (path, *path.glob("*"))) < limit:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def load(path):
    """The module at that path, apart from geowidth._cuda, with an attribute `emulator`."""
    spec = importlib.util.spec_from_file_location("_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.emulator = Emulator(path)
    return module


class Emulator:
    """The card that the module's kernels believe they run on."""

    SEED = 20260802

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        self.library.emulator_last_failure.restype = ctypes.c_char_p

    def set_seed(self, seed):
        """The order of threads and blocks from now on."""
        self.library.emulator_set_seed(ctypes.c_uint64(seed))

    def set_device(self, multiprocessors=132, shared_bytes=232448, capability=(9, 0)):
        """What the card has; an H200 by default. `shared_bytes`: the most a block may ask for."""
        self.library.emulator_set_device(multiprocessors, shared_bytes, *capability)

    def reset(self):
        """The first seed, an H200, statistics at 0."""
        self.set_seed(self.SEED)
        self.set_device()
        self.library.emulator_reset_statistics()

    def statistics(self):
        """{name: count} since the last reset; `shared_bytes` is the largest of any launch."""
        values = (ctypes.c_uint64 * len(STATISTICS))()
        self.library.emulator_statistics(values)
        return dict(zip(STATISTICS, values, strict=True))

    def last_failure(self):
        """Why the last launch that was given up was."""
        return self.library.emulator_last_failure().decode()
