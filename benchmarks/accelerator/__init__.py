"""Measures what speculation costs and gains on the device at hand."""
