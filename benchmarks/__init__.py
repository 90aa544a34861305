"""Benchmarks: real processes on loopback, CPU read from the kernel, ratios from one run.

Run one with ``scripts/bench bench_stream`` (or ``make bench`` for all). Each prints the machine,
the versions and a table; the figures in docs/performance.md are copied from there with their date.
"""
