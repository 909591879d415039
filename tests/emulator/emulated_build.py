"""geowidth._cuda for a machine without a GPU: the same sources, compiled as C++ against the headers beside this file.

Objects and modules are kept in the user's cache folder under a hash of everything that goes into them, so that only
the first session compiles, and sessions at once do not disturb each other.
"""

import ctypes
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pybind11

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests/emulator"
JOBS = 2
KEPT_DAYS = 14
COMMON = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", '-DGEOWIDTH_CUDA_ARCHITECTURES="emulator"']
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
UNDEFINED = ["-fsanitize=undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"]
INCLUDES = [f"-I{HERE}", "-Icsrc", "-Ikernels/cuda"]
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


def build(address_sanitizer=False):
    """Path of the extension module; with AddressSanitizer it loads only where that library was loaded first."""
    kernels = [*COMMON, *WARNINGS, "-O1", "-g", *UNDEFINED, *INCLUDES]
    kernels += ["-fsanitize=address", "-fno-omit-frame-pointer"] if address_sanitizer else []
    bindings = [*COMMON, *WARNINGS, "-O0", *INCLUDES, f"-I{pybind11.get_include()}"]
    bindings += [f"-I{sysconfig.get_paths()['include']}"]
    jobs = [(source, kernels) for source in sources("kernels/cuda/*.cu", f"{HERE}/*.cpp", f"{HERE}/*.cu")]
    jobs += [(source, bindings) for source in sources("csrc/cuda/*.cpp")]
    headers = hash_of(*(path.read_bytes() for path in sorted(header_files())))
    with ThreadPoolExecutor(JOBS) as pool:
        objects = list(pool.map(lambda job: compiled(*job, headers), jobs))
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    shared += ["-fsanitize=address"] if address_sanitizer else []
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


def compiler_version():
    return subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True).stdout


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


def cache():
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
    target = cache() / name
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        aside = target.with_name(f"{os.getpid()}-{target.name}")
        make(aside)
        os.replace(aside, target)
    os.utime(target)
    return target


def forget_old():
    """Removes what no session used for two weeks."""
    for path in cache().iterdir():
        newest = max((p.stat().st_mtime for p in ([path, *path.iterdir()] if path.is_dir() else [path])), default=0)
        if newest < time.time() - KEPT_DAYS * 86400:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


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
