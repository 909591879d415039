"""Builds GeoWidth's compiled extensions with ninja.

``geowidth._native``  C++17 for the CPU, always: every ``csrc/cpu/*.cpp`` and ``csrc/bindings/*.cpp``.
``geowidth._cuda``    CUDA kernels, when nvcc is found: every ``kernels/cuda/*.cu`` and ``csrc/cuda/*.cpp``.
``geowidth.kernels``  the Triton kernels of ``kernels/triton``: Python, compiled by Triton when first called.

A file named ``*.simd.cpp`` is compiled once per instruction set (portable, and on x86-64 also AVX2 and AVX-512)
with ``GEOWIDTH_VARIANT`` naming the namespace it fills; csrc/cpu/dispatch.h picks one at run time.

Neither extension includes or links torch: one build serves every torch version.

Environment
    GEOWIDTH_CUDA=0|1               never / always build ``geowidth._cuda`` (default: when nvcc is found)
    GEOWIDTH_CUDA_ARCHITECTURES     for example "80;90a" (default: all of 80, 90a, 100 this nvcc knows)
    CUDA_HOME                       where to look for bin/nvcc before PATH
    CXX, CXXFLAGS, LDFLAGS          as usual
    MAX_JOBS                        parallel compilations (default: all cores)
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
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
    listed = os.environ.get("GEOWIDTH_CUDA_ARCHITECTURES")
    if listed:
        return [a for a in re.split(r"[;, ]+", listed) if a]
    known = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout.split()
    return [a for a in ("80", "90a", "100") if f"compute_{a.rstrip('a')}" in known]


def cuda_home(nvcc):
    """Folder of the CUDA toolkit, as nvcc itself names it: the nvcc on PATH may be a link or a wrapper script."""
    words = subprocess.run([nvcc, "--dryrun", "-c", "-x", "cu", os.devnull], capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.+)$", words, re.MULTILINE)
    return Path(top.group(1)).resolve() if top else Path(nvcc).resolve().parent.parent


def escape(path):
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


class NinjaFile:
    """The text of one build.ninja, grown rule by rule."""

    def __init__(self, folder):
        self.folder = folder
        self.lines = ["ninja_required_version = 1.5"]

    def rule(self, name, command, depfile=False):
        self.lines += [f"rule {name}", f"  command = {command}", f"  description = {name} $out"]
        if depfile:
            self.lines += ["  depfile = $out.d", "  deps = gcc"]

    def build(self, rule, output, inputs, **variables):
        self.lines.append(f"build {escape(output)}: {rule} {' '.join(escape(i) for i in inputs)}")
        self.lines += [f"  {k} = {v}" for k, v in variables.items()]

    def object_for(self, source, tag=""):
        return self.folder / "objects" / (str(Path(source).relative_to(ROOT)).replace(os.sep, "-") + tag + ".o")

    def run(self):
        (self.folder / "objects").mkdir(parents=True, exist_ok=True)
        (self.folder / "build.ninja").write_text("\n".join(self.lines) + "\n")
        command = [ninja_program(), "-C", str(self.folder)]
        if os.environ.get("MAX_JOBS"):
            command += ["-j", os.environ["MAX_JOBS"]]
        if subprocess.run(command).returncode:
            raise SystemExit("compiling GeoWidth's extensions failed; the compiler's own words stand above")


def ninja_program():
    try:
        import ninja

        return str(Path(ninja.BIN_DIR) / "ninja")
    except (ImportError, AttributeError):
        found = shutil.which("ninja")
        if found is None:
            raise SystemExit("ninja was not found: pip install ninja") from None
        return found


def add_native(ninja, output):
    """Rules and edges for geowidth._native."""
    import pybind11

    compiler = os.environ.get("CXX", "c++")
    includes = [ROOT / "csrc", pybind11.get_include(), sysconfig.get_paths()["include"]]
    flags = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-pthread"]
    flags += ["-Wall", "-Wextra", "-DNDEBUG", f'-DGEOWIDTH_COMPILER=\\"{Path(compiler.split()[-1]).name}\\"']
    flags += [f"-I{shlex.quote(str(i))}" for i in includes] + [os.environ.get("CXXFLAGS", "")]
    ninja.rule("cxx", f"{compiler} -MMD -MF $out.d {' '.join(flags)} $variant -c $in -o $out", depfile=True)
    shared = ["-undefined", "dynamic_lookup", "-bundle"] if sys.platform == "darwin" else ["-shared"]
    ninja.rule("link", f"{compiler} {' '.join(shared)} -pthread $in -o $out {os.environ.get('LDFLAGS', '')}")
    objects = []
    for source in sorted([*(ROOT / "csrc/cpu").glob("*.cpp"), *(ROOT / "csrc/bindings").glob("*.cpp")]):
        if source.name.endswith(".simd.cpp"):
            for variant, options in VARIANTS.items():
                objects.append(ninja.object_for(source, "-" + variant))
                ninja.build("cxx", objects[-1], [source], variant=" ".join([*options, f"-DGEOWIDTH_VARIANT={variant}"]))
        else:
            objects.append(ninja.object_for(source))
            ninja.build("cxx", objects[-1], [source], variant="-DGEOWIDTH_X86=1" if X86 else "")
    ninja.build("link", output, objects)


def add_cuda(ninja, output, nvcc):
    """Rules and edges for geowidth._cuda. The CUDA runtime is linked in, so importing it needs no driver."""
    import pybind11

    home = cuda_home(nvcc)
    compiler = os.environ.get("CXX", "c++")
    includes = [ROOT / "csrc", ROOT / "kernels/cuda", pybind11.get_include(), sysconfig.get_paths()["include"]]
    paths = " ".join(f"-I{shlex.quote(str(i))}" for i in [*includes, home / "include"])
    architectures = cuda_architectures(nvcc)
    codes = " ".join(f"-gencode arch=compute_{a},code=sm_{a}" for a in architectures)
    ninja.rule(
        "nvcc",
        f"{nvcc} -std=c++17 -O3 -lineinfo -Xcompiler -fPIC,-fvisibility=hidden {codes} -MD -MF $out.d "
        f"{paths} -c $in -o $out",
        depfile=True,
    )
    define = f'-DGEOWIDTH_CUDA_ARCHITECTURES=\\"{",".join(architectures)}\\"'
    ninja.rule(
        "cuda_host",
        f"{compiler} -MMD -MF $out.d -std=c++17 -O2 -fPIC -fvisibility=hidden {define} {paths} -c $in -o $out",
        depfile=True,
    )
    library = next((p for p in (home / "lib64", home / "lib", home / "targets/x86_64-linux/lib") if p.is_dir()), home)
    ninja.rule(
        "cuda_link", f"{compiler} -shared $in -o $out -L{shlex.quote(str(library))} -lcudart_static -ldl -lrt -pthread"
    )
    objects = []
    for source in sorted((ROOT / "kernels/cuda").glob("*.cu")):
        objects.append(ninja.object_for(source))
        ninja.build("nvcc", objects[-1], [source])
    for source in sorted((ROOT / "csrc/cuda").glob("*.cpp")):
        objects.append(ninja.object_for(source))
        ninja.build("cuda_host", objects[-1], [source])
    ninja.build("cuda_link", output, objects)


class NinjaBuild(build_ext):
    """Hands all extensions to one ninja run: parallel, incremental, header dependencies included."""

    def run(self):
        folder = Path(self.build_temp).resolve()
        ninja = NinjaFile(folder)
        built = {}
        for extension in self.extensions:
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


extensions = [Extension("geowidth._native", sources=[])]
if find_nvcc() and list((ROOT / "kernels/cuda").glob("*.cu")):
    extensions.append(Extension("geowidth._cuda", sources=[]))

setup(
    packages=find_packages(include=["geowidth", "geowidth.*"]),
    package_dir={"geowidth.kernels": "kernels/triton"},
    package_data={"geowidth": ["report/*.css", "report/*.js"], "geowidth.kernels": ["*.csv"]},
    ext_modules=extensions,
    cmdclass={"build_ext": NinjaBuild},
    include_package_data=False,  # package_data above names all of it
    zip_safe=False,
)
