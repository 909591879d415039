"""Result files: strict JSON that reads back exactly, written aside and then renamed, so a killed process loses nothing.

Non-finite floats have no JSON form. They are written as {"$float": "inf"}, {"$float": "-inf"} or {"$float": "nan"} and
read back as floats; strings are never touched. Every record carries `kind` and `schema`, checked on reading.
"""

import json
import math
import os
import platform
from pathlib import Path

from geowidth.errors import UserError

_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_jsonable(value):
    """Plain lists, dicts and scalars for any mix of those with numpy or torch arrays and scalars, tuples and paths."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return {"$float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if isinstance(value, dict):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy and torch, arrays and scalars alike
        return to_jsonable(value.tolist())
    raise TypeError(f"no JSON form for {type(value).__name__}: {value!r}")


def _revive(pairs):
    if set(pairs) == {"$float"} and isinstance(pairs["$float"], str) and pairs["$float"] in _NON_FINITE:
        return _NON_FINITE[pairs["$float"]]
    return pairs


def dumps(value, **options):
    """`value` as strict JSON text."""
    text = json.dumps(to_jsonable(value), allow_nan=False, ensure_ascii=False, **options)
    # File names that are not UTF-8 reach us with lone surrogates; as JSON escapes they can be written and read back.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def loads(text):
    """The value that `dumps` wrote. Text that is not JSON raises ValueError; so do bare NaN and Infinity, which strict
    JSON forbids."""

    def refuse(word):
        raise ValueError(f"bare {word} is not JSON")

    try:
        return json.loads(text, object_hook=_revive, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_text(path, text):
    """Write `text` in UTF-8 beside `path`, then rename it into place: readers see the old file or the whole new one."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path, data):
    """Write `data` beside `path`, bring it to the disk, then rename it into place. A failure leaves the old file."""
    path = Path(path)
    aside = path.with_name(_aside(path.name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(aside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name a folder that can be written") from error


def check_writable(path):
    """Raise a UserError now, before hours of work, if a file `path` could not be written later. Leaves no trace."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; name a file")
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise UserError(f"cannot write {path}: {folder} is a file, not a folder; name a folder that can be written")
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"cannot write {path}: no permission to replace it; name a folder that can be written")
    try:
        _try_to_write(folder, path.relative_to(folder).parts[0])
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name a folder that can be written") from error


def _try_to_write(folder, name):
    """Make and remove a file as `write_text` does: asking for permissions misses read-only and special file systems."""
    aside = folder / _aside(name)
    aside.touch()
    aside.unlink()


def _aside(name):
    return f".{name}.{os.getpid()}.tmp"


def write_json(path, value):
    """Write `value` as indented strict JSON, atomically."""
    write_text(path, dumps(value, indent=1) + "\n")


def read_json_lines(path):
    """The values of a file with one JSON value a line; [] without a file. A last line that a kill cut short is left
    out, any other that is not JSON is refused."""
    path = Path(path)
    if not path.is_file():
        return []
    found, lines = [], path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                found.append(loads(line))
        except ValueError as error:
            if number < len(lines):
                raise UserError(f"{path} line {number} is not JSON ({error}); delete that line") from error
    return found


def claim_folder(path, record, what):
    """Write `record` to `path`, a settings.json, or check that the one there has the same settings, so that one folder
    never mixes two sets of them. what: "a run", for the message. Raises UserError naming the first that differs."""
    check_writable(path)
    path = Path(path)
    if not path.exists():
        return write_json(path, record)
    found = read_json(path, record["kind"], record["schema"]).get("settings") or {}
    wanted = loads(dumps(record["settings"]))
    differ = next((name for name in wanted if found.get(name) != wanted[name]), None)
    if differ is not None:
        raise UserError(
            f"{path.parent} holds {what} with {differ} {found.get(differ)!r}, not {wanted[differ]!r}; "
            "name another folder with --out, or ask for the same settings to go on"
        )


def read_json(path, kind=None, schema=None):
    """Read a JSON file; with `kind` and `schema`, refuse a file of another kind or of a newer schema."""
    path = Path(path)
    try:
        value = loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if kind is not None:
        found = value.get("kind") if isinstance(value, dict) else None
        if found != kind:
            raise UserError(
                f"{path} holds {repr(found) if found else 'no GeoWidth record'}; a file of kind {kind!r} is needed here"
            )
        if schema is not None and not (isinstance(value.get("schema"), int) and value["schema"] <= schema):
            raise UserError(
                f"{path} has schema {value.get('schema')!r}; this GeoWidth reads up to {schema}: upgrade it"
            )
    return value


def environment():
    """Versions and machine facts that every result file carries."""
    from importlib.metadata import version

    import numpy
    import torch

    import geowidth

    return {
        "geowidth": geowidth.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scipy": version("scipy"),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }
