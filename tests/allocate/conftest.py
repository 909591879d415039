"""A measured work profile for the allocation tests, as a record and as a file."""

import pytest
from work_profiles import make_profile


@pytest.fixture
def profile():
    """Eight layers measured at width 344."""
    return make_profile()


@pytest.fixture
def work_file(tmp_path, profile):
    """The profile as work.json."""
    path = tmp_path / "work.json"
    profile.write(path)
    return path
