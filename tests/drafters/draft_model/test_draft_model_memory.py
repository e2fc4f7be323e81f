"""Memory of a drafted tree at a real vocabulary. Nothing is computed, only traced."""

import jax
import jax.numpy as jnp
import pytest
import quick
import tiny

import jspec
from jspec.types import Frame, Output
from jspec.verify import schemes

VOCAB = 128_256
MODEL = tiny.draft(vocab_size=VOCAB)
RECURSIVE = dict(scheme=schemes.RECURSIVE)
SHAPE = jspec.tree.likeliest([0.6, 0.2, 0.1, 0.05], 64)

# Of 60 to 64 nodes.
BUDGET = {
    "sequoia": jspec.Sequoia(MODEL, SHAPE, **RECURSIVE),
    "rsd_c": jspec.RSDC(MODEL, (2, 2, 2, 2, 2), **RECURSIVE),
    "rsd_s": jspec.RSDS(MODEL, beam=8, max_depth=8, **RECURSIVE),
    "spectr": jspec.SpecTr(MODEL, num_chains=8, max_depth=8, scheme=schemes.K_SEQ),
    "specinfer": jspec.SpecInfer(MODEL, (4, 3, 1, 1, 1, 1), scheme=schemes.MULTI_ROUND),
    "dyspec": jspec.DySpec(MODEL, num_speculative_tokens=64, max_depth=8, beam=16, **RECURSIVE),
    "coupled_tree": jspec.CoupledTree(MODEL, num_speculative_tokens=64, max_depth=8, beam=16),
}


def subprograms(value):
    """The programs inside an equation's parameter."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from subprograms(part)
    elif hasattr(value, "eqns"):
        yield value
    elif hasattr(value, "jaxpr"):
        yield value.jaxpr


def sizes(program):
    """Elements of every array that a program makes, loops and branches included.

    Of what depends on the platform it is what most have: a GPU alone searches a threshold by
    comparing with fifteen values side by side, in one fused pass that keeps none of them.
    """
    platforms = set()
    for equation in program.eqns:
        if equation.primitive.name == "platform_index":
            platforms.update(equation.outvars)
        for made in equation.outvars:
            if hasattr(made.aval, "size"):
                yield made.aval.size
        if equation.primitive.name == "cond" and equation.invars[0] in platforms:
            yield from sizes(equation.params["branches"][-1].jaxpr)
            continue
        for value in equation.params.values():
            for inner in subprograms(value):
                yield from sizes(inner)


@pytest.mark.parametrize("name", quick.only(BUDGET, "sequoia", "rsd_s", "dyspec"))
def test_distributions_are_kept_of_scored_nodes_alone(name):
    drafter, batch = BUDGET[name], 1
    tokens = jnp.zeros((batch, 2), jnp.int32)
    weights = jax.eval_shape(
        MODEL.init, jax.random.key(0), tokens, tokens, jnp.ones((batch, 2, 2), bool), None
    )
    lengths = jnp.full(batch, 2)
    seen = Output(jax.ShapeDtypeStruct((batch, 2, VOCAB), jnp.float32), None)

    def draft(weights, state, prompt):
        one, keys = jnp.ones(batch), jax.random.split(jax.random.key(0), batch)
        sampling = jspec.Sampling(one, jnp.zeros(batch, jnp.int32), one, 0 * one)
        frame = Frame(prompt[:, -1], lengths - 1, keys, sampling, jnp.zeros(batch, bool))
        return drafter.draft(weights, state, frame)[0]

    start = jax.eval_shape(lambda: drafter.init(batch, 128, None))
    chunk = jax.eval_shape(jspec.PromptChunk.whole, tokens, lengths, seen)
    state = jax.eval_shape(drafter.prefill, weights, start, chunk)
    program, tree = jax.make_jaxpr(draft, return_shape=True)(weights, state, tokens)
    assert 60 <= tree.tokens.shape[1] - 1 <= 64
    scored = 1 + drafter.num_scored
    if tree.q is not None:
        assert tree.q.shape == (batch, scored, VOCAB)
        assert tree.q.size * tree.q.dtype.itemsize < 64 * 2**20
    # All distributions at once, but nothing of nodes by nodes by the vocabulary, or by children.
    assert max(sizes(program.jaxpr)) <= max(scored, 64) * VOCAB
