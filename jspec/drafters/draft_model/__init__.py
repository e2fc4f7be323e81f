"""Drafters that ask a second, smaller language model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=["acceptance_vector", "sequoia_tree"]
)
