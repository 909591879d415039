"""Sweeps that race GeoWidth's ops and pipelines against their peers: ``python -m benchmarks.run NAME [--quick]``.

A benchmark is one row of ``benchmarks.run.BENCHMARKS`` and one module with

    add_arguments(parser)   its own options (``--quick``, ``--out``, ``--threads``, ``--seed``, ``--plot`` are common)
    run(arguments)          -> list of ``benchmarks.schema.Row``

The module times with ``benchmarks.timing.interleave``, so that every provider meets the same noise, and puts an
accuracy or an objective beside every time: a fast wrong answer is shown as one. Results are one CSV schema
(``benchmarks/schema.py``); committed ones are in ``benchmarks/results``, what they taught is in ``benchmarks/LOG.md``.
"""
