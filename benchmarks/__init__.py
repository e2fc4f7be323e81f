"""Measurements as commands, a folder for each paper; README.md lists them."""
