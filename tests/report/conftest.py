"""One complete run folder for the tests that only read."""

import pytest
from synthetic import make_run

from geowidth.report import write_report


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    """These tests write hundreds of small files; none of them is about surviving a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run folder with its report."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "läuft gut")
    write_report(folder)
    return folder
