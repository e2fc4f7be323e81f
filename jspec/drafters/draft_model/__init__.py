"""Drafters that ask a second, smaller language model."""
