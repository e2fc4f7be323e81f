"""Lossless speculative decoding for JAX as one pure function: `jspec.decode`.

The public names are those of `__init__.pyi`. They are imported on first use: JAX takes a second to
import, and `jspec --help` shall not wait for it.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
