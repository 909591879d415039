"""Names of devices, as given by users."""

import torch

from geowidth.errors import UserError, shown

Device = str | torch.device


def device_named(name: Device, also: tuple[str, ...] = ()) -> torch.device:
    """The torch.device of "cpu", "cuda" or "cuda:N"; a UserError for other names and for GPUs that are not there.

    also: words that the caller takes besides, named in the refusal.
    """
    allowed = ", ".join(("cpu", "cuda", "cuda:N", *also))
    if not isinstance(name, (str, torch.device)):
        raise UserError(f"device is {shown(name)}; allowed: {allowed}")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device is {name!r}; allowed: {allowed}") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device is {name!r}; allowed: {allowed}")
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise UserError(f"device is {name!r}, but this machine has {torch.cuda.device_count()} CUDA devices; use cpu")
    return device
