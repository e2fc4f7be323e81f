"""How trees grow: what draft models, heads and retrieval share."""
