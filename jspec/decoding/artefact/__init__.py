"""Artefacts: a whole generation as files that a process with only JAX loads and runs."""

from jspec.decoding.artefact.write import export as export
