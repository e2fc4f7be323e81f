"""Drafters that look tokens up: no training, no second model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["datastore"])
