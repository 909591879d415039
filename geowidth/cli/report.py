"""Draw a run folder as one HTML page, with JSON and CSV files beside it.

Reads, from the folder that geowidth run wrote, whatever exists of
  settings.json, work.json, schedules/*.json, arms/ARM/seed-S/{config,result}.json and metrics.jsonl, comparison.json
Writes into the same folder
  report.html      one self-contained page (no network): profiles, widths, losses, paired table
  report.json      facts, verdicts, what is missing
  work.csv         layer, geometry, statistic, unit, value; *_no_large_norms without tokens of very large norm
  widths.csv       arm, layer, width, base_width, floor, cap, at
  losses.csv       arm, seed, step, split, loss, tokens, seconds
  comparison.csv   the paired table, one line per arm
A half-finished run is drawn too; the page says what is missing and which command makes it.

The folder of geowidth cascade study is drawn as well: from its settings.json and trainings, or from study.json alone,
into report.html, study.json, arms.csv and blocks.csv.

Examples
  geowidth report runs/nano --open
  geowidth report runs/cascade
"""

from geowidth.report.charts import clean
from geowidth.report.write import write_report


def add_arguments(parser):
    parser.add_argument("folder", metavar="DIR", help="folder that geowidth run or geowidth cascade study wrote")
    parser.add_argument("--open", action="store_true", help="open the page in the web browser afterwards")


def run(arguments):
    path = write_report(arguments.folder)
    print(clean(path))
    if arguments.open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
