"""Verification: pure functions that decide which path of a drafted tree is emitted.

`coupled`, `recursive`, `traversal` and `block` take the logits of a tree and give a `Verdict`: all
that an engine with a cache, a scheduler and a loop of its own needs of jspec. The engine of
`jspec.decode` goes through the same verifiers, see `jspec.schemes`, and imports these functions on
first use alone.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
