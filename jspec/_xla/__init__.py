"""Helpers for XLA: platforms, meshes, kernels, loops."""
