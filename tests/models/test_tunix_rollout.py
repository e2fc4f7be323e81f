"""The rollout worker for tunix alongside tunix's own: `pip install google-tunix`."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jspec

pytest.importorskip("tunix", reason="tunix is not installed; pip install google-tunix")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "libraries" / "tunix_rollout.py"
PROMPTS = ["abcab", "c", "hello there"]
VOCAB, NEW, LONGEST = 32, 20, 16


class Letters:
    """A letter is a token."""

    def encode(self, text):
        return [3 + ord(letter) % 26 for letter in text]

    def decode(self, ids):
        return "".join(chr(97 + token) for token in ids)

    def bos_id(self):
        return 1

    def eos_id(self):
        return 2

    def pad_id(self):
        return 0


def policy(seed):
    from flax import nnx
    from tunix.models.llama3 import model as llama

    none = llama.ShardingConfig(*[(None,) * 3] * len(llama.ShardingConfig.__slots__))
    config = llama.ModelConfig(
        num_layers=2, vocab_size=VOCAB, embed_dim=16, hidden_dim=24, num_heads=4, head_dim=8,
        num_kv_heads=2, rope_theta=10_000, norm_eps=1e-5, shd_config=none,
    )  # fmt: skip
    made = llama.Llama3(config, rngs=nnx.Rngs(0))
    state, rng = nnx.state(made, nnx.Param), np.random.default_rng(seed)
    nnx.update(made, jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.4, leaf.shape), jnp.float32) if leaf.ndim > 1
        else jnp.ones_like(leaf), state,
    ))  # fmt: skip
    return made


def workers():
    from tunix.rl.rollout.base_rollout import CacheConfig
    from tunix.rl.rollout.vanilla_rollout import VanillaRollout

    rollout = runpy.run_path(str(EXAMPLE))["JspecRollout"]
    own = VanillaRollout(policy(1), Letters(), CacheConfig(64, 2, 2, 8))
    return rollout(policy(1), Letters()), own


def test_a_policy_that_is_trained_in_place_is_sampled_as_it_is():
    """As tunix trains it where actor and rollout share a mesh, without `update_params`."""
    from flax import nnx

    ours, _ = workers()
    first = ours.generate(PROMPTS, asked())
    nnx.update(ours.model(), nnx.state(policy(2)))
    found = ours.generate(PROMPTS, asked())
    wanted = type(ours)(policy(2), Letters()).generate(PROMPTS, asked())
    same(found, wanted)
    with pytest.raises(AssertionError):
        same(found, first)


def asked(**changes):
    from tunix.rl.rollout.base_rollout import RolloutConfig

    settings = dict(
        max_tokens_to_generate=NEW, max_prompt_length=LONGEST, temperature=0.0, top_p=None,
        return_logprobs=True,
    )  # fmt: skip
    return RolloutConfig(**(settings | changes))


def same(found, wanted):
    for ours, theirs in zip(found.tokens, wanted.tokens, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(found.logprobs, wanted.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert found.text == wanted.text
    np.testing.assert_array_equal(found.left_padded_prompt_tokens, wanted.left_padded_prompt_tokens)


def test_greedy_answers_are_those_of_tunix_before_and_after_new_weights():
    from flax import nnx

    ours, theirs = workers()
    first = ours.generate(PROMPTS, asked())
    same(first, theirs.generate(PROMPTS, asked()))
    with jspec.no_recompile():
        same(ours.generate(PROMPTS, asked()), first)
        new = nnx.state(policy(2), nnx.Param)
        ours.update_params(new)
        moved = ours.generate(PROMPTS, asked())
    theirs.update_params(new)
    same(moved, theirs.generate(PROMPTS, asked()))
    assert first.text != moved.text


def test_sampled_answers_repeat_themselves_and_have_the_policys_log_probabilities():
    """tunix draws with other noise, so that its sampled tokens are others."""
    ours, theirs = workers()
    warm = asked(temperature=1.0, top_p=1.0, seed=5)
    one, again = (ours.generate(PROMPTS, warm) for _ in range(2))
    for a, b in zip(one.tokens, again.tokens, strict=True):
        np.testing.assert_array_equal(a, b)
    answers = np.zeros((len(PROMPTS), NEW), np.int32)
    for row, tokens in zip(answers, one.tokens, strict=True):
        row[: len(tokens)] = tokens
    given = jnp.asarray(one.left_padded_prompt_tokens), jnp.asarray(answers)
    scored = ours.get_per_token_logps(*given)
    np.testing.assert_allclose(scored, theirs.get_per_token_logps(*given), atol=1e-5)
    for row, known, tokens in zip(np.asarray(scored), one.logprobs, one.tokens, strict=True):
        # tunix's scorer takes a pad token for padding, wherever it is.
        count = int((tokens == 0).argmax()) if (tokens == 0).any() else len(tokens)
        assert count > 2
        np.testing.assert_allclose(row[:count], known[:count], atol=1e-4)


def test_it_has_the_seven_methods():
    from tunix.rl.rollout.base_rollout import BaseRollout

    ours, _ = workers()
    assert isinstance(ours, BaseRollout) and not type(ours).__abstractmethods__
    assert (ours.pad_id(), ours.eos_id()) == (0, 2)
    assert ours.model().config.vocab_size == VOCAB
