"""The growth of trees, shared by draft models, heads and retrieval."""
