"""Say what was built, which backend serves which op on this machine, and why not the others.

Reads nothing, writes nothing. Attach its output to a bug report.
"""

import importlib
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version

from geowidth.ops import backend

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
        "extensions": extensions,
        "operations": {
            name: {device: _choices(operation, device) for device in ("cpu", "cuda")}
            for name, operation in sorted(backend.OPERATIONS.items())
        },
        "GEOWIDTH_BACKEND": os.environ.get("GEOWIDTH_BACKEND"),
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
    path = shutil.which("nvcc")
    if path is None:
        return None
    lines = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.splitlines()
    return next((line.strip() for line in lines if "release" in line), "found, version unknown")


def _gpu(torch):
    if not torch.cuda.is_available():
        built = torch.version.cuda
        return {"usable": False, "reason": f"this torch was built {f'for CUDA {built}' if built else 'without CUDA'}"}
    major, minor = torch.cuda.get_device_capability()
    return {"usable": True, "name": torch.cuda.get_device_name(), "capability": f"{major}.{minor}"}


def _choices(operation, device):
    """[{backend, serves, reason}], best first; the first that serves is the one used."""
    return [{"backend": n, "serves": reason is None, "reason": reason} for n, reason in operation.report(device)]


def _nobody(choices, device):
    """Why an op has no backend on a device: all refuse, or none was written."""
    return "no backend serves it here" if choices else f"no backend for {device}; move the tensors to the CPU"


def render(facts):
    """The facts as text."""
    lines = [f"geowidth {facts['geowidth']}, Python {facts['python']}, {facts['machine']}"]
    lines += ["", "packages"]
    lines += [f"  {name:14}{found or 'not installed'}" for name, found in facts["packages"].items()]
    gpu = facts["gpu"]
    lines += ["", "accelerator"]
    lines += [
        f"  GPU           {gpu['name'] + ', compute capability ' + gpu['capability'] if gpu['usable'] else 'none'}"
    ]
    lines += [] if gpu["usable"] else [f"                ({gpu['reason']})"]
    lines += [f"  nvcc          {facts['nvcc'] or 'not found'}", "", "extensions"]
    for name, extension in facts["extensions"].items():
        rest = {k: v for k, v in extension.items() if k not in ("built", "reason")}
        words = ", ".join(f"{k} {' '.join(v) if isinstance(v, (list, tuple)) else v}" for k, v in rest.items())
        lines.append(f"  {name:18}{'built: ' + words if extension['built'] else 'no: ' + extension['reason']}")
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
    if facts["GEOWIDTH_BACKEND"]:
        lines += ["", f"GEOWIDTH_BACKEND={facts['GEOWIDTH_BACKEND']} is set: every op must use that backend or fail"]
    return "\n".join(lines)
