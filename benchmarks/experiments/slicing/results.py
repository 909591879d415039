"""Everything that follows from the committed cells: the tables, the picture and the page."""

from benchmarks.experiments.slicing import page, picture, table
from benchmarks.experiments.slicing.analysis import Study

TABLES, HEADLINE, PICTURE, PAGE = "results.md", "headline.md", "slicing.svg", "page.html"


def of_study(study):
    """{file name: text}; the headline is the table of the README."""
    tables = {TABLES: table.everything(study), HEADLINE: table.headline(study)}
    return {**tables, PICTURE: picture.svg(study), PAGE: page.html(study)}


def of_folder(folder):
    """The same from the lines in a folder."""
    return of_study(Study.read(folder))
