"""Policies: the number of drafted nodes that each round verifies."""
