"""Every drafter, once. A new method joins the contract by a line here."""

import jax.numpy as jnp
import tiny

import jspec
from jspec import tree as trees

_SCRIPT = jspec.Script(tokens=jnp.asarray([[1, 2, 3, 4] * 16] * 3), accepts=jnp.array([2, 0, 1]))
_SMALL = trees.Template(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))

# name: (drafter, its params)
DRAFTERS = {
    "token_recycling": (jspec.TokenRecycling(tiny.VOCAB), None),
    "token_recycling_small": (
        jspec.TokenRecycling(tiny.VOCAB, _SMALL, k=3, update_on_prefill=True),
        None,
    ),
    "token_recycling_per_row": (jspec.TokenRecycling(tiny.VOCAB, _SMALL, per_row=True), None),
    "prompt_lookup": (jspec.PromptLookup(num_speculative_tokens=4), None),
    "prompt_lookup_latest": (
        jspec.PromptLookup(num_speculative_tokens=3, whole=False, latest=True),
        None,
    ),
    "scripted": (jspec.Scripted(tiny.VOCAB, trees.branching([2, 1])), _SCRIPT),
    "merge": (
        jspec.merge(
            jspec.TokenRecycling(tiny.VOCAB, _SMALL),
            jspec.PromptLookup(num_speculative_tokens=4, whole=False),
        ),
        None,
    ),
}
