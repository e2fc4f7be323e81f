"""A drafter whose draws are verified by another rule than its own."""

from dataclasses import dataclass

from jspec._validate.arguments import takes
from jspec._validate.errors import InputError
from jspec.drafters.wrapper import DrafterWrapper
from jspec.protocols import Drafter, NodeRule, Verifier
from jspec.verify.schemes import COUPLED
from jspec.verify.tree_verifier import TreeVerifier


@dataclass(frozen=True)
class Verified(DrafterWrapper):
    """Drafts the trees of its drafter, for another verifier. Make it with `with_verifier`."""

    drafter: Drafter
    verifier: Verifier


def with_verifier(drafter: Drafter, rule: NodeRule | Verifier) -> Verified:
    """Returns the drafter, with another rule to decide about its draws.

    The coupled rule is lossless for every drafter. Another one is lossless only for draws that were
    made for it: a drafter that draws by a scheme of its own has the verifier of that scheme, and
    one that looks at the noise which decides has the coupled rule's.

    Args:
        drafter: proposes the trees.
        rule: a node rule such as `jspec.rules.deterministic_proposal`, or a verifier.

    Raises:
        InputError: if it is not a rule, or the drafter's draws were made for another one.

    Example:
        >>> import jspec
        >>> lookup = jspec.PromptLookup()
        >>> jspec.with_verifier(lookup, jspec.rules.deterministic_proposal).drafter == lookup
        True
    """
    if isinstance(drafter, type) or not isinstance(drafter, Drafter):
        raise InputError(
            f"drafter is {drafter!r:.80}; pass an instance such as jspec.PromptLookup()"
        )
    if isinstance(rule, type) or not (callable(rule) or isinstance(rule, Verifier)):
        raise InputError(
            f"rule is {rule!r:.80}; pass a node rule such as jspec.rules.deterministic_proposal"
        )
    # A node rule is a plain function; a verifier is a static object.
    if not isinstance(rule, Verifier) and not takes(rule, 5):
        raise InputError(
            f"rule is {rule!r:.80}, which does not take (p, q, children, valid, noise); see "
            "jspec.NodeRule"
        )
    verifier = rule if isinstance(rule, Verifier) else TreeVerifier(rule)
    default = drafter.verifier
    if default is not None and verifier not in (default, COUPLED.verifier):
        raise InputError(
            f"rule is {verifier} and the drafter's draws are lossless under {default} alone, or "
            "under jspec.rules.coupled; give the drafter a scheme that pairs its draws with that "
            "rule"
        )
    return Verified(drafter, verifier)
