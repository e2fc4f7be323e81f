"""jspec's own inventions, apart from the methods of the papers.

Trees around a copy of the text, n-gram tables of the target's distributions, the coupled tree,
DySpec with learnt rates, and the probabilities of a block's tokens. They keep the contract of all
drafters, and are as lossless.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["ngrams"])
