"""Everything that follows from the committed cells: the tables, the picture and the page."""

from benchmarks.experiments.slicing import page, picture, table
from benchmarks.experiments.slicing.analysis import Study

TABLES, PICTURE, PAGE = "results.md", "slicing.svg", "page.html"


def of_study(study):
    """{file name: text}."""
    return {TABLES: table.everything(study), PICTURE: picture.svg(study), PAGE: page.html(study)}


def of_folder(folder):
    """The same from the lines in a folder."""
    return of_study(Study.read(folder))
