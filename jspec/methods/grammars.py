"""Any drafter alongside the one that drafts what a grammar forces."""

from jspec.drafters.autoregressive import Autoregressive
from jspec.drafters.jump_forward import JumpForward
from jspec.drafters.merge import merge
from jspec.methods.llm import LLM
from jspec.verify.choice import verifier_of
from jspec.verify.schemes import COUPLED


def with_jump_forward(llm: LLM) -> LLM:
    """Returns the model with its drafter in a merge with `jspec.JumpForward`."""
    drafter = llm.drafter
    if isinstance(drafter, Autoregressive) or verifier_of(drafter) != COUPLED.verifier:
        return llm
    budget = max(llm.policy.widths[-1], 1) if llm.policy.widths else None
    # Longer chains would not be verified.
    usual = JumpForward.num_speculative_tokens
    forced = JumpForward(usual if budget is None else min(usual, budget))
    # The policy, if it has widths, takes the nodes of largest value.
    params = (llm.drafter_params, None)
    drafting = {"drafter": merge(drafter, forced), "drafter_params": params}
    return LLM(llm.target, **llm.drafting | drafting)
