"""Verification: which path of a drafted tree is emitted, as pure functions.

`coupled`, `recursive`, `traversal` and `block` take the logits of a tree and give a `Verdict`: all
that an engine with a cache, a scheduler and a loop of its own needs of jspec. The engine of
`jspec.decode` goes through the same verifiers, see `jspec.schemes`.
"""

from jspec.verify.functions import block as block
from jspec.verify.functions import coupled as coupled
from jspec.verify.functions import recursive as recursive
from jspec.verify.functions import tokens as tokens
from jspec.verify.functions import traversal as traversal
from jspec.verify.functions import verdict as verdict

__all__ = ["block", "coupled", "recursive", "tokens", "traversal", "verdict"]
