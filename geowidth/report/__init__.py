"""One HTML page, CSV and JSON of a run folder; the paired table as text; the work profiles as a picture."""

from geowidth.report.page import SECTIONS, Section
from geowidth.report.profiles import profile_svg
from geowidth.report.tables import table
from geowidth.report.write import write_report

__all__ = ["SECTIONS", "Section", "profile_svg", "table", "write_report"]
