"""Any drafter alongside the one that drafts what a grammar forces."""

from dataclasses import replace

from jspec.drafters.autoregressive import Autoregressive
from jspec.drafters.ensemble.budgeted_merge import BudgetedMerge
from jspec.drafters.ensemble.merge import merge
from jspec.drafters.jump_forward import JumpForward
from jspec.protocols import Drafter
from jspec.types import PyTree
from jspec.verify.choice import verifier_of
from jspec.verify.schemes import COUPLED


def with_jump_forward(
    drafter: Drafter, params: PyTree, widths: tuple[int, ...] = ()
) -> tuple[Drafter, PyTree]:
    """Returns the drafter and its params, in a merge with `jspec.JumpForward` of as many nodes.

    One that draws by a rule of its own cannot be merged and stays as it is, and so does plain
    decoding.

    Args:
        drafter: for the parts of a text that its grammar leaves free.
        params: its own.
        widths: of the policy. Of a tree that is cut to them, as many nodes as the largest are left.
    """
    if isinstance(drafter, Autoregressive) or verifier_of(drafter) != COUPLED.verifier:
        return drafter, params
    if widths:
        return _merged(drafter, params, widths[-1])
    return merge(drafter, JumpForward()), (params, None)


def _merged(drafter: Drafter, params: PyTree, budget: int) -> tuple[Drafter, PyTree]:
    # Longer chains would not be verified.
    forced = JumpForward(min(JumpForward.num_speculative_tokens, max(budget, 1)))
    if isinstance(drafter, BudgetedMerge):
        each = (None,) * len(drafter.drafters) if params is None else params
        return replace(drafter, drafters=(*drafter.drafters, forced)), (*each, None)
    made = merge(drafter, forced, num_speculative_tokens=max(budget, 1))
    return made, (params, None)
