"""Experiments with training: what was asked, the commands, and their results in a folder of its own each.

prose       the second corpus: the King James Bible of Debian's package, a text file a chapter
baseline    size, batch and learning rate with which the uniform model is best at a fixed compute
study       schedules and their controls over paired seeds, on one corpus
slicing     a pretrained model sliced by rules for widths, against uniform ones: a package with its cells and results
order       whether the order of the widths matters once their direction is held: reads the study's losses
"""
