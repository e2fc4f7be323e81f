"""Measurements as commands: `python -m benchmarks.NAME --help`."""
