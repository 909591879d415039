"""Say what was built, which backend serves which op on this machine, and why not the others.

Reads nothing, writes nothing. Attach its output to a bug report.

Examples
  geowidth doctor
  geowidth doctor --json
"""

import importlib
import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from geowidth import registry
from geowidth.errors import UserError
from geowidth.ops import backend

LEAST_NVCC = (11, 2)  # the first that setup.py's options and architectures exist in
PACKAGES = ("torch", "numpy", "scipy", "POT", "safetensors", "triton", "transformers", "gudhi")


def add_arguments(parser):
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments):
    facts = examine()
    if arguments.json:
        from geowidth import records

        print(records.dumps(facts, indent=1))
    else:
        print(render(facts))
    return 0 if facts["extensions"]["geowidth._native"]["built"] else 1


def examine():
    """Everything the command prints, as one dict."""
    import torch

    import geowidth

    importlib.import_module("geowidth.ops")  # registers the operations
    registry.load_extensions()
    wrong = _wrong_choice()
    native, native_reason = backend.native()
    cuda, cuda_reason = backend.cuda()
    extensions = {
        "geowidth._native": _extension(native, native_reason),
        "geowidth._cuda": _extension(cuda, cuda_reason),
    }
    return {
        "geowidth": geowidth.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in PACKAGES},
        "nvcc": _nvcc(),
        "gpu": _gpu(torch),
        "driver": _driver(cuda),
        "distributed": _distributed(),
        "extensions": extensions,
        "operations": {
            name: {device: _choices(operation, device, wrong is None) for device in ("cpu", "cuda")}
            for name, operation in sorted(backend.OPERATIONS.items())
        },
        backend.VARIABLE: os.environ.get(backend.VARIABLE),
        f"{backend.VARIABLE}_refused": wrong,
        "extensions_loaded": [f"{module} ({where})" for where, module in registry.extension_names()],
    }


def _extension(module, reason):
    if module is None:
        return {"built": False, "reason": reason}
    return {"built": True, **module.build_information()}


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _nvcc():
    """What nvcc says of itself, with a word where it is too old; None if there is none where setup.py looks."""
    home = os.environ.get("CUDA_HOME")
    path = (shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None) or shutil.which("nvcc")
    if path is None:
        return None
    lines = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.splitlines()
    return nvcc_words(next((line.strip() for line in lines if "release" in line), ""))


def nvcc_words(line):
    """nvcc's own line on its release, judged."""
    found = re.search(r"release (\d+)\.(\d+)", line)
    if found is None:
        return "found, version unknown"
    old = tuple(map(int, found.groups())) < LEAST_NVCC
    return line + (f"; too old for the CUDA kernels, which need {'.'.join(map(str, LEAST_NVCC))}" if old else "")


def _driver(cuda):
    """The newest CUDA that the driver serves, as "13.0"; None without a driver, or without geowidth._cuda to ask."""
    from geowidth.ops.cuda_support import release

    found = cuda.driver_version() if cuda else 0
    return release(found) if found else None


def _distributed():
    """Names of the ways in which this torch lets processes talk to each other (torchrun)."""
    import torch.distributed as dist

    if not dist.is_available():
        return []
    return [name for name in ("gloo", "nccl", "mpi") if getattr(dist, f"is_{name}_available")()]


def _gpu(torch):
    if not torch.cuda.is_available():
        built = torch.version.cuda
        return {"usable": False, "reason": f"this torch was built {f'for CUDA {built}' if built else 'without CUDA'}"}
    about = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "usable": True,
        "name": about.name,
        "count": torch.cuda.device_count(),
        "capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "memory_gib": round(about.total_memory / 2**30, 1),
    }


def _wrong_choice():
    """Why GEOWIDTH_BACKEND is refused, or None."""
    try:
        backend.requested()
    except UserError as error:
        return str(error)
    return None


def _choices(operation, device, ask):
    """[{backend, serves, reason}], best first; the first that serves is the one used."""
    found = [{"backend": n, "serves": reason is None, "reason": reason} for n, reason in operation.report(device)]
    wanted = operation.wanted(device) if ask else None
    for choice in found:
        if wanted is not None and choice["backend"] != wanted and choice["serves"]:
            choice |= {"serves": False, "reason": f"{backend.VARIABLE} asks for {wanted}"}
    return found


def _nobody(choices, device):
    """Why an op has no backend on a device: all refuse, or none was written."""
    return "no backend serves it here" if choices else "computed on the CPU"


def _gpu_words(gpu):
    if not gpu["usable"]:
        return f"none; {gpu['reason']}"
    size = f"compute capability {gpu['capability']}, {gpu['multiprocessors']} multiprocessors, {gpu['memory_gib']} GiB"
    return f"{gpu['name']}, {size}" + (f"; the first of {gpu['count']}" if gpu["count"] > 1 else "")


def _built_words(extension):
    rest = {k: v for k, v in extension.items() if k not in ("built", "reason") and v != ""}
    if "runtime" in rest:
        from geowidth.ops.cuda_support import release

        rest["runtime"] = f"CUDA {release(rest['runtime'])}"
    return ", ".join(f"{k} {' '.join(v) if isinstance(v, (list, tuple)) else v}" for k, v in rest.items())


def render(facts):
    """The facts as text."""
    lines = [f"geowidth {facts['geowidth']}, Python {facts['python']}, {facts['machine']}"]
    lines += ["", "packages"]
    lines += [f"  {name:14}{found or 'not installed'}" for name, found in facts["packages"].items()]
    lines += ["", "accelerator", f"  GPU           {_gpu_words(facts['gpu'])}"]
    lines += [f"  driver        for CUDA up to {facts['driver']}"] if facts["driver"] else []
    lines += [f"  nvcc          {facts['nvcc'] or 'not found'}"]
    ways = " ".join(facts["distributed"]) or "one alone; this torch has no torch.distributed"
    lines += [f"  processes     {ways}", "", "extensions"]
    for name, extension in facts["extensions"].items():
        words = f"built: {_built_words(extension)}" if extension["built"] else f"no: {extension['reason']}"
        lines.append(f"  {name:18}{words}")
    for device in ("cpu", "cuda"):
        lines += ["", f"ops on {device}"]
        for name, devices in facts["operations"].items():
            used = next((c["backend"] for c in devices[device] if c["serves"]), None)
            lines.append(f"  {name}: {used or _nobody(devices[device], device)}")
            for choice in devices[device]:
                if not choice["serves"]:
                    lines.append(f"    not {choice['backend']}: {choice['reason']}")
                elif choice["backend"] != used:
                    lines.append(f"    also {choice['backend']}")
    if facts["extensions_loaded"]:
        lines += ["", "extensions of geowidth", *(f"  {name}" for name in facts["extensions_loaded"])]
    if facts[backend.VARIABLE]:
        refused = facts[f"{backend.VARIABLE}_refused"]
        words = f"every op will refuse it: {refused}" if refused else "an op named by it must use that backend or fail"
        lines += ["", f"{backend.VARIABLE}={facts[backend.VARIABLE]} is set: {words}"]
    return "\n".join(lines)
