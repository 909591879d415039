"""Builds GeoWidth's compiled extensions with ninja.

``geowidth._native``  C++17 for the CPU, always: every ``csrc/cpu/*.cpp`` and ``csrc/bindings/*.cpp``.
``geowidth._cuda``    CUDA kernels, when nvcc is found: every ``kernels/cuda/*.cu`` and ``csrc/cuda/*.cpp``.
``geowidth.kernels``  the Triton kernels of ``kernels/triton``: Python, compiled by Triton when first called.

A file named ``*.simd.cpp`` is compiled once per instruction set (portable, and on x86-64 also AVX2 and AVX-512)
with ``GEOWIDTH_VARIANT`` naming the namespace it fills; csrc/cpu/dispatch.h picks one at run time.

Neither extension includes or links torch: one build serves every torch version.

Environment
    GEOWIDTH_CUDA=0|1               never / always build ``geowidth._cuda`` (default: when nvcc is found)
    GEOWIDTH_CUDA_ARCHITECTURES     for example "80;90a" (default: all of 80, 90a, 100 this nvcc knows); the newest of
                                    them without a letter is kept as PTX too, for GPUs newer than all of them
    CUDA_HOME                       where to look for bin/nvcc before PATH
    CXX, CXXFLAGS, LDFLAGS          as usual
    MAX_JOBS                        parallel compilations (default: all cores)

Without network or build isolation, `python setup.py build_ext --inplace` needs setuptools alone: pybind11's headers are
taken from torch where pybind11 is missing, and the rules are run one by one where ninja is.
"""

import filecmp
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
X86 = platform.machine().lower() in ("x86_64", "amd64")
VARIANTS = {"portable": []}
if X86:
    VARIANTS["avx2"] = ["-mavx2", "-mfma"]
    # GCC's own AVX-512 headers set off its warning about uninitialised values (GCC bug 105593).
    VARIANTS["avx512"] = ["-Wno-maybe-uninitialized", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]

# benchmarks/cuda_resources.py compiles with the same flags. Line numbers are for profilers and compute-sanitizer; with
# them the machine code is six times as large unless compressed.
NVCC_FLAGS = ["-std=c++17", "-O3", "-lineinfo", "-Xfatbin", "-compress-all", "-Wreorder", "-Xcompiler",
              "-fPIC,-fvisibility=hidden,-Wall,-Wextra"]  # fmt: skip
# Code for 8.0 serves 8.6 and 8.9 as well, that for 10.0 serves 10.3. Hopper is compiled as 9.0a, so that its own
# instructions may be used; there is no later 9.x that plain 9.0 would serve.
CUDA_ARCHITECTURES = ("80", "90a", "100")
LEAST_ARCHITECTURE = 70  # __nanosleep, with which blocks wait for each other


def find_nvcc():
    """Path of nvcc, or None when there is none or GEOWIDTH_CUDA=0. GEOWIDTH_CUDA=1 without nvcc is an error."""
    wanted = os.environ.get("GEOWIDTH_CUDA", "")
    if wanted not in ("", "0", "1"):
        raise SystemExit(f"GEOWIDTH_CUDA is {wanted!r}; allowed: 0 (never), 1 (always), unset (when nvcc is found)")
    if wanted == "0":
        return None
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None
    nvcc = nvcc or shutil.which("nvcc")
    if wanted == "1" and nvcc is None:
        raise SystemExit("GEOWIDTH_CUDA=1 but nvcc was found neither in CUDA_HOME/bin nor on PATH")
    return nvcc


def cuda_architectures(nvcc):
    """Compute capabilities to compile for, as nvcc spells them ("90a")."""
    found = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True).stdout
    known = set(re.findall(r"compute_(\d+)\b", found))
    usable = sorted((k for k in known if int(k) >= LEAST_ARCHITECTURE), key=int)
    if "80" not in known:
        raise SystemExit(f"{nvcc} does not know compute capability 8.0; install CUDA 11.2 or newer, or GEOWIDTH_CUDA=0")
    listed = os.environ.get("GEOWIDTH_CUDA_ARCHITECTURES", "")
    wanted = list(dict.fromkeys(a for a in re.split(r"[;, ]+", listed) if a))
    for name in wanted:
        number = re.sub(r"(?<=\d\d)[af]$", "", name)
        if number not in usable or (number != name and int(number) < 90):
            raise SystemExit(
                f"GEOWIDTH_CUDA_ARCHITECTURES names {name!r}; allowed with this nvcc: {', '.join(usable)}, those from "
                "90 on also with a letter (90a); several with semicolons"
            )
    if listed and not wanted:
        raise SystemExit(f"GEOWIDTH_CUDA_ARCHITECTURES is {listed!r}; name at least one, for example 80;90a")
    return wanted or [a for a in CUDA_ARCHITECTURES if a.rstrip("a") in known]


def cuda_ptx(architectures):
    """The newest architecture whose PTX the driver can compile for any newer GPU, or "" if none is of that kind."""
    return max((a for a in architectures if a.isdecimal()), key=int, default="")


def cuda_home(nvcc):
    """Folder of the CUDA toolkit, as nvcc itself names it: the nvcc on PATH may be a link or a wrapper script."""
    words = subprocess.run([nvcc, "--dryrun", "-c", "-x", "cu", os.devnull], capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.+)$", words, re.MULTILINE)
    return Path(top.group(1)).resolve() if top else Path(nvcc).resolve().parent.parent


def jobs():
    """How many compilers may run at once."""
    limit = os.environ.get("MAX_JOBS") or os.cpu_count() or 1
    if not str(limit).isdecimal() or int(limit) < 1:
        raise SystemExit(f"MAX_JOBS is {limit!r}; allowed: a whole number of at least 1")
    return int(limit)


# nvcc hands its commands to a shell between double quotes; ninja has no way to write these in a file name.
UNREADABLE = {"nvcc": "$\"'`\\\n\r", "ninja": "|\n\r"}


def refuse_unreadable(program, *folders):
    """Stop, naming folder and letter, if `program` cannot read files of one of these folders."""
    for folder in map(str, folders):
        letter = next((c for c in folder if c in UNREADABLE[program]), None)
        if letter is not None:
            leave = ", or leave the CUDA kernels out with GEOWIDTH_CUDA=0" if program == "nvcc" else ""
            raise SystemExit(f"the folder {folder!r} holds the letter {letter!r}, which {program} cannot read; "
                             f"build in a folder without it{leave}")  # fmt: skip


def escape(path):
    """A file name as ninja reads it in a build line."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def literal(*words):
    """Words of a command that reach the program as they are: past the shell that runs it, past ninja's variables."""
    return shlex.join(map(str, words)).replace("$", "$$")


def from_environment(name, default=""):
    """The words of a variable such as CXXFLAGS, split as a shell would, nothing in them expanded."""
    value = os.environ.get(name, "")
    try:
        return shlex.split(value) or shlex.split(default)
    except ValueError as error:
        raise SystemExit(f"{name} is {value!r}: {error}; quote it as for a shell") from None


class NinjaFile:
    """The text of one build.ninja, grown rule by rule."""

    def __init__(self, folder):
        self.folder = folder
        self.lines = ["ninja_required_version = 1.5"]
        self.commands, self.edges = {}, []

    def rule(self, name, command, depfile=False):
        self.commands[name] = command
        self.lines += [f"rule {name}", f"  command = {command}", f"  description = {name} $out"]
        if depfile:
            self.lines += ["  depfile = $out.d", "  deps = gcc"]

    def build(self, rule, output, inputs, **variables):
        self.edges.append((rule, output, inputs, variables))
        self.lines.append(f"build {escape(output)}: {rule} {' '.join(escape(i) for i in inputs)}")
        self.lines += [f"  {k} = {v}" for k, v in variables.items()]

    def object_for(self, source, tag=""):
        return self.folder / "objects" / (str(Path(source).relative_to(ROOT)).replace(os.sep, "-") + tag + ".o")

    def run(self):
        (self.folder / "objects").mkdir(parents=True, exist_ok=True)
        (self.folder / "build.ninja").write_text("\n".join(self.lines) + "\n")
        program = ninja_program()
        if program:
            refuse_unreadable("ninja", ROOT, self.folder)
            limit = ["-j", str(jobs())] if os.environ.get("MAX_JOBS") else []
            done = subprocess.run([program, "-C", str(self.folder), *limit]).returncode == 0
        else:
            print("ninja was not found: every file is compiled again")
            done = self._run_all()
        if not done:
            words = "; GEOWIDTH_CUDA=0 leaves the CUDA kernels out" if "nvcc" in self.commands else ""
            raise SystemExit(f"compiling GeoWidth's extensions failed; the compiler's own words stand above{words}")

    def _run_all(self):
        """Every command in parallel, those that need another's output last; whether all succeeded."""

        def execute(edge):
            rule, output, inputs, variables = edge
            words = {"in": shlex.join(map(str, inputs)), "out": shlex.quote(str(output)), "$": "$"} | variables
            command = re.sub(r"\$(\w+|\$)", lambda m: words.get(m[1], ""), self.commands[rule])
            return subprocess.run(command, shell=True).returncode

        outputs = {edge[1] for edge in self.edges}
        last = [edge for edge in self.edges if outputs.intersection(edge[2])]
        with ThreadPoolExecutor(jobs()) as pool:
            return all(not any(pool.map(execute, stage)) for stage in ([e for e in self.edges if e not in last], last))


def ninja_program():
    """Path of ninja, the package's or the one on PATH; None if there is neither."""
    try:
        import ninja

        return str(Path(ninja.BIN_DIR) / "ninja")
    except (ImportError, AttributeError):
        return shutil.which("ninja")


def pybind11_headers():
    """The folder that holds pybind11/pybind11.h; torch brings a copy."""
    try:
        import pybind11

        binding = Path(pybind11.get_include())
    except ImportError:
        torch = importlib.util.find_spec("torch")  # found, not imported: that would take seconds
        binding = Path(torch.origin).parent / "include" if torch and torch.origin else ROOT
    if not (binding / "pybind11" / "pybind11.h").is_file():
        raise SystemExit("pybind11 was not found: pip install pybind11") from None
    return binding


def keep_headers(source, target):
    """Copy a folder of headers to `target`, leaving alone the files that are there already; returns `target`.

    In an isolated build pybind11 lies in a new folder each time: compiled from there, every file would be out of date.
    """
    for header in source.rglob("*.h"):
        kept = target / header.relative_to(source)
        if not (kept.is_file() and filecmp.cmp(header, kept, shallow=False)):
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(header, kept)
    return target


def include_folders(folder):
    """-I options for our own headers, pybind11's (kept in the build folder) and Python's."""
    keep_headers(pybind11_headers() / "pybind11", folder / "include" / "pybind11")
    python = Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").is_file():
        raise SystemExit(
            f"Python.h is not in {python}: install the headers of this Python (python3-dev, python3-devel)"
        )
    return [f"-I{place}" for place in (ROOT / "csrc", ROOT / "kernels/cuda", folder / "include", python)]


def host_compiler():
    """The C++ compiler as words, as CXX names it (options and all)."""
    compiler = from_environment("CXX", "c++")
    if shutil.which(compiler[0]) is None:
        named = shlex.join(compiler)
        raise SystemExit(f"the C++ compiler {named!r} was not found: install g++ or clang++, or name one in CXX")
    return compiler


def compiler_name(compiler):
    """What `geowidth doctor` calls a compiler: its file name, without options or wrappers before it."""
    name = Path(next(word for word in reversed(compiler) if not word.startswith("-"))).name
    return re.sub(r"[^\w.+-]", "_", name)


def add_native(ninja, output):
    """Rules and edges for geowidth._native."""
    compiler = host_compiler()
    flags = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-pthread"]
    flags += [
        "-Wall",
        "-Wextra",
        "-Wno-psabi",
        "-Werror=missing-declarations",  # what a *.simd.cpp defines must be what its header declares
        "-DNDEBUG",
        f'-DGEOWIDTH_COMPILER="{compiler_name(compiler)}"',
    ]
    flags += ["-DGEOWIDTH_X86=1"] if X86 else []
    flags += [*include_folders(ninja.folder), *from_environment("CXXFLAGS")]
    ninja.rule("cxx", f"{literal(*compiler)} -MMD -MF $out.d {literal(*flags)} $variant -c $in -o $out", depfile=True)
    shared = ["-undefined", "dynamic_lookup", "-bundle"] if sys.platform == "darwin" else ["-shared"]
    shared = literal(*compiler, *shared, "-pthread")
    ninja.rule("link", f"{shared} $in -o $out {literal(*from_environment('LDFLAGS'))}")
    objects = []
    for source in sorted([*(ROOT / "csrc/cpu").glob("*.cpp"), *(ROOT / "csrc/bindings").glob("*.cpp")]):
        if source.name.endswith(".simd.cpp"):
            for variant, options in VARIANTS.items():
                objects.append(ninja.object_for(source, "-" + variant))
                ninja.build("cxx", objects[-1], [source], variant=" ".join([*options, f"-DGEOWIDTH_VARIANT={variant}"]))
        else:
            objects.append(ninja.object_for(source))
            ninja.build("cxx", objects[-1], [source])
    ninja.build("link", output, objects)


def add_cuda(ninja, output, nvcc):
    """Rules and edges for geowidth._cuda. The CUDA runtime is linked in, so importing it needs no driver."""
    home, compiler = cuda_home(nvcc), host_compiler()
    refuse_unreadable("nvcc", ROOT, ninja.folder, home)
    paths = literal(*include_folders(ninja.folder), f"-I{home / 'include'}")
    architectures = cuda_architectures(nvcc)
    ptx = cuda_ptx(architectures)
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    codes += [f"-gencode=arch=compute_{ptx},code=compute_{ptx}"] if ptx else []
    sources = sorted((ROOT / "kernels/cuda").glob("*.cu"))
    threads = max(1, jobs() // len(sources))  # ninja compiles files in parallel, nvcc one file's architectures
    ninja.rule(
        "nvcc",
        f"{literal(nvcc, *NVCC_FLAGS, '--threads', threads, *codes)} -MD -MF $out.d {paths} -c $in -o $out",
        depfile=True,
    )
    flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    flags += [f'-DGEOWIDTH_CUDA_ARCHITECTURES="{",".join(architectures)}"', f'-DGEOWIDTH_CUDA_PTX="{ptx}"']
    ninja.rule(
        "cuda_host", f"{literal(*compiler)} -MMD -MF $out.d {literal(*flags)} {paths} -c $in -o $out", depfile=True
    )
    library = next((p for p in (home / "lib64", home / "lib", home / "targets/x86_64-linux/lib") if p.is_dir()), home)
    ninja.rule(
        "cuda_link",
        f"{literal(*compiler)} -shared $in -o $out {literal(f'-L{library}')} -lcudart_static -ldl -lrt -pthread",
    )
    objects = []
    for source in sources:
        objects.append(ninja.object_for(source))
        ninja.build("nvcc", objects[-1], [source])
    for source in sorted((ROOT / "csrc/cuda").glob("*.cpp")):
        objects.append(ninja.object_for(source))
        ninja.build("cuda_host", objects[-1], [source])
    ninja.build("cuda_link", output, objects)


class NinjaBuild(build_ext):
    """Hands all extensions to one ninja run: parallel, incremental, header dependencies included."""

    def folder(self):
        """Where objects are made: for an editable install a folder of the source tree, so that the next compiles only
        what has changed (setuptools would name a temporary one)."""
        if getattr(self, "editable_mode", False):
            return ROOT / "build" / f"editable-{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        return Path(self.build_temp).resolve()

    def run(self):
        folder = self.folder()
        ninja = NinjaFile(folder)
        built = {}
        for extension in reversed(self.extensions):  # CUDA files take longest: begun first
            output = folder / Path(self.get_ext_filename(extension.name)).name
            built[extension.name] = output
            if extension.name == "geowidth._native":
                add_native(ninja, output)
            else:
                add_cuda(ninja, output, find_nvcc())
        ninja.run()
        for extension in self.extensions:
            target = Path(self.get_ext_fullpath(extension.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.with_name(target.name + ".new")
            shutil.copyfile(built[extension.name], aside)
            os.replace(aside, target)


def main():
    extensions = [Extension("geowidth._native", sources=[])]
    if find_nvcc():
        extensions.append(Extension("geowidth._cuda", sources=[]))
    setup(
        packages=find_packages(include=["geowidth", "geowidth.*"]),
        package_dir={"geowidth.kernels": "kernels/triton"},
        package_data={"geowidth": ["py.typed", "report/*.css", "report/*.js"], "geowidth.kernels": ["*.csv"]},
        ext_modules=extensions,
        cmdclass={"build_ext": NinjaBuild},
        include_package_data=False,  # package_data above names all of it
        zip_safe=False,
    )


if __name__ == "__main__":
    main()
