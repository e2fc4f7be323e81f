"""A model whose memory is a state: the engine moves it, and never looks into it."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

import jspec
from jspec.testing import RecurrentLM, check_model

MODEL = RecurrentLM()
PARAMS = MODEL.init()


def oracle(text):
    """The state and the logits after a text, in float64."""
    gates, inputs, head = (np.asarray(PARAMS[n], np.float64) for n in ("gates", "inputs", "head"))
    state = np.zeros(gates.shape[1])
    for token in text:
        state = gates[token] * state + inputs[token]
    return state, state @ head


def test_a_tree_is_scored_and_committed_as_its_paths():
    parents = [-1, 0, 0, 1, 1, 2, 3]
    paths = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 1, 3, 6]]
    mask = np.zeros((2, 7, 7), bool)
    for node, path in enumerate(paths):
        assert node == 0 or path[-2] == parents[node]
        mask[:, node, path] = True
    tokens = np.random.default_rng(1).integers(0, 23, (2, 7))
    past = [[3, 4, 5], []]
    memory = MODEL.init_memory(2, 9).replace(
        state=jnp.asarray(np.stack([oracle(text)[0] for text in past]), jnp.float32)
    )
    given = (jnp.asarray(x) for x in (tokens, mask.sum(-1), mask))
    output = MODEL.apply(PARAMS, *given, memory)
    for row in range(2):
        for node, path in enumerate(paths):
            wanted = oracle([*past[row], *tokens[row, path]])[1]
            np.testing.assert_allclose(output.logits[row, node], wanted, rtol=1e-5, atol=1e-5)
    path = jnp.array([[0, 1, 3, 6], [0, 2, 5, 0]])
    after = MODEL.commit(memory, output.tentative, path, jnp.array([3, 0]))
    for row, text in enumerate(([*past[0], *tokens[0, [0, 1, 3]]], past[1])):
        np.testing.assert_allclose(after.state[row], oracle(text)[0], rtol=1e-5, atol=1e-6)


def test_it_keeps_the_contract_of_models():
    report = check_model(MODEL, PARAMS)
    assert "cut back" in report.skipped[0] and "by levels" in report.skipped[1]


def test_another_nodes_state_would_be_seen():
    """The negative control: the state of the root in place of the last accepted node's."""

    @dataclass(frozen=True)
    class Wrong(RecurrentLM):
        def commit(self, memory, tentative, path, counts):
            return super().commit(memory, tentative, path, jnp.minimum(counts, 1))

    with pytest.raises(AssertionError, match=r"text in chunks|committed path"):
        check_model(Wrong(), PARAMS)


def test_uses_that_need_a_cut_are_refused():
    with pytest.raises(jspec.InputError, match=r"does not take|no method until"):
        jspec.CoupledTree(MODEL)
