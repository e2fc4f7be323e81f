"""How many drafted nodes each round verifies."""
