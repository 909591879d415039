"""The study of slicing: how many FFN neurons each layer of SmolLM2-135M keeps, by which rule, and what it costs.

    python -m benchmarks.experiments.slicing                              table, picture and page, from committed cells
    python -m benchmarks.experiments.slicing --run --prose FOLDER         computes the cells that are missing

design     texts, draws, kept shares, arms, and the order in which cells are run
ground     what all cells of a text and a draw share: windows, signals, neuron scores, Gram matrices, sensitivities
cells      one cell: widths, neurons, correction, losses of every window; one line of cells.jsonl each
analysis   paired differences with errors over windows and over draws, Holm's correction, order against multiset,
           rank correlation of signals with measured sensitivity
table      the tables in Markdown; picture: the drawing of the README; page: all of it on one page
"""

from pathlib import Path

ROOT = Path(__file__).parent
