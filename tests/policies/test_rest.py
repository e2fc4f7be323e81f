"""A round at rest, in which nothing is drafted, does the work of a round of plain decoding."""

import jax
import numpy as np
import pytest

import jspec
from jspec.protocols import Drafting
from jspec.round.phases import one_round
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=4096)
PARAMS = MODEL.init()
DRAFTER = jspec.merge(jspec.Spine(4096, 7), jspec.Suffix(7, capacity=64), num_speculative_tokens=7)
COSTS = jspec.CostCurve.of({1: 1.0, 8: 2.0})


def work(jaxpr):
    """The elements that a program's operations write; of a condition's branches, the smallest."""
    total = 0
    for eqn in jaxpr.eqns:
        inside = [
            work(getattr(part, "jaxpr", part))
            for value in eqn.params.values()
            for part in (value if isinstance(value, tuple | list) else [value])
            if hasattr(getattr(part, "jaxpr", part), "eqns")
        ]
        written = eqn.outvars
        if eqn.primitive.name == "optimization_barrier":  # moves nothing
            written = []
        elif "scatter" in eqn.primitive.name:  # in place
            written = eqn.invars[2:]
        elif "update_slice" in eqn.primitive.name:
            written = eqn.invars[1:2]
        here = sum(int(np.prod(var.aval.shape)) for var in written)
        total += (min if eqn.primitive.name == "cond" else sum)(inside) if inside else here
    return total


def of_a_round(asked, drafter, policy, costs):
    drafting = dict(drafter=drafter, policy=policy, policy_params=costs)
    state = jax.eval_shape(
        lambda: jspec.prefill(MODEL, PARAMS, [[1, 2, 3]], max_new_tokens=4, **drafting)
    )
    program = jax.make_jaxpr(one_round, static_argnums=(0, 4, 5))
    told = Drafting(drafter, None, policy, costs)
    return work(program(MODEL, PARAMS, state, told, asked, "cpu").jaxpr)


@pytest.mark.slow
def test_a_round_without_a_draft_adds_little_to_plain_decoding():
    """Checks that learning in short back-offs is in its own branch; a draft is the control."""
    adaptive = DRAFTER, jspec.Adaptive((0, 3, 7)), COSTS
    plain = of_a_round(True, jspec.Autoregressive(), jspec.FixedWidth(), None)
    assert of_a_round(False, *adaptive) < plain + 5 * MODEL.vocab_size
    assert of_a_round(True, *adaptive) > plain + 100 * MODEL.vocab_size
