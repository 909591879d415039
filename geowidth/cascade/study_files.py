"""Names and kinds of the files of a cascade study; nothing heavy is loaded to tell one."""

from pathlib import Path

from geowidth import files, records
from geowidth.files import PathLike

SETTINGS_FILE, SETTINGS_KIND = "settings.json", "geowidth.cascade_study_settings"
RECORD_FILE, RECORD_KIND = "study.json", "geowidth.cascade_study"


def is_study(folder: PathLike) -> bool:
    """Whether a folder is that of a cascade study, rather than of another run."""
    folder = Path(folder)
    if not folder.is_dir():
        return False
    settings = folder / SETTINGS_FILE
    if files.exists(settings):
        record = records.read_json(settings)
        return isinstance(record, dict) and record.get("kind") == SETTINGS_KIND
    return files.exists(folder / RECORD_FILE)
