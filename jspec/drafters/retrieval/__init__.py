"""Drafters that look tokens up: no training, no second model."""
