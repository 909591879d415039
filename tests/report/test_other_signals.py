"""Reports of work in geometries and of statistics that an extension brought, whether or not it is there to ask."""

import csv
import io
import re

import pytest
from work_profiles import make_profile

from geowidth import records
from geowidth.errors import UserError
from geowidth.geometry import GEOMETRIES, Geometry
from geowidth.report import profile_svg, write_report


@pytest.fixture
def folder(tmp_path):
    """A run folder whose work was measured in another geometry, and by another statistic, too."""
    work = make_profile(4)
    work.work["chord"] = {"shift": [1.0, 2.0, 3.0, 4.0], "mine": [5.0, 6.0, 7.5, 8.0]}
    work.write(tmp_path / "work.json")
    return tmp_path


@pytest.mark.parametrize("known", [True, False])
def test_page_csv_and_picture_hold_them(folder, monkeypatch, known):
    monkeypatch.setattr(GEOMETRIES, "_items", dict(GEOMETRIES._items))
    if known:
        GEOMETRIES.register(Geometry("chord", True, "chords", from_angle=lambda angle, _: 2 * (angle / 2).sin()))
    page = write_report(folder).read_text(encoding="utf-8")
    assert 'id="work-mine-chord"' in page or "work-mine-chord" in page
    assert "--columns: 4" in page and ("unit chords" in page) == known and ("unit unknown" in page) != known
    rows = list(csv.reader(io.StringIO((folder / "work.csv").read_text(encoding="utf-8"))))
    assert ["2", "mine", "chord", "chords" if known else "", "7.5"] in rows
    assert {row[3] for row in rows if row[2] == "hyperbolic"} == {"length"}
    svg = profile_svg(folder / "work.json")
    assert "mine, chord: 4 layers" in svg and "gw, chord: Gromov" in svg
    assert float(re.search('width="([0-9.]+)"', svg)[1]) > 1290


def test_certificates_of_another_geometry_are_checked_too(folder):
    value = records.read_json(folder / "work.json")
    value["details"] = [{"chord": {"gw": {"value": "much"}}}] * 4
    records.write_json(folder / "work.json", value)
    with pytest.raises(UserError, match=r"details\[0\].chord.gw.value is 'much'"):
        write_report(folder)
