"""Flax architectures, checkpoints and the small models that the project trained."""
