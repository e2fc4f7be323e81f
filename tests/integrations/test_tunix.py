"""The rollout engine for tunix, compared with tunix's own: `pip install google-tunix`."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jspec

pytest.importorskip("tunix", reason="tunix is not installed; pip install google-tunix")

from tunix.models.qwen3 import model as qwen3
from tunix.rl.rollout.base_rollout import BaseRollout, CacheConfig, RolloutConfig
from tunix.rl.rollout.vanilla_rollout import VanillaRollout

from jspec.integrations import tunix
from jspec.integrations.tunix import JspecRollout

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
    config = qwen3.ModelConfig(
        num_layers=2, vocab_size=VOCAB, embed_dim=16, hidden_dim=24, num_heads=4, head_dim=8,
        num_kv_heads=2, rope_theta=10_000, norm_eps=1e-5, use_tied_embedding=False,
    )  # fmt: skip
    made = qwen3.Qwen3(config, rngs=nnx.Rngs(0))
    state, rng = nnx.state(made, nnx.Param), np.random.default_rng(seed)
    nnx.update(made, jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.4, leaf.shape), jnp.float32) if leaf.ndim > 1
        else jnp.ones_like(leaf), state,
    ))  # fmt: skip
    return made


def worker(seed=1, **options):
    return JspecRollout(policy(seed), Letters(), **(options or {"drafter": jspec.Suffix()}))


def vanilla():
    return VanillaRollout(policy(1), Letters(), CacheConfig(64, 2, 2, 8))


def asked(**changes):
    settings = dict(
        max_tokens_to_generate=NEW, max_prompt_length=LONGEST, temperature=0.0, top_p=None,
        return_logprobs=True,
    )  # fmt: skip
    return RolloutConfig(**(settings | changes))


def same(found, wanted):
    for ours, theirs in zip(found.tokens, wanted.tokens, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(found.logprobs, wanted.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert found.text == wanted.text
    np.testing.assert_array_equal(found.left_padded_prompt_tokens, wanted.left_padded_prompt_tokens)


def test_a_policy_that_is_trained_in_place_is_sampled_as_it_is():
    """As tunix trains it where actor and rollout share a mesh, without `update_params`."""
    ours = worker()
    first = ours.generate(PROMPTS, asked())
    nnx.update(ours.model(), nnx.state(policy(2)))
    found = ours.generate(PROMPTS, asked())
    wanted = worker(2).generate(PROMPTS, asked())
    same(found, wanted)
    with pytest.raises(AssertionError):
        same(found, first)


@pytest.mark.parametrize("options", [{}, {"method": "auto"}], ids=["suffix", "auto"])
def test_greedy_answers_are_those_of_tunix_before_and_after_new_weights(options):
    ours, theirs = worker(**options), vanilla()
    first = ours.generate(PROMPTS, asked())
    same(first, theirs.generate(PROMPTS, asked()))
    with jspec.no_recompile():
        same(ours.generate(PROMPTS, asked()), first)
        new = nnx.state(policy(3), nnx.Param)  # whose answers lack the pad token, which tunix masks
        ours.update_params(new, (nnx.Param,))
        moved = ours.generate(PROMPTS, asked())
    theirs.update_params(new)
    same(moved, theirs.generate(PROMPTS, asked()))
    assert first.text != moved.text


def test_a_prompt_that_is_too_long_is_padded_as_tunix_pads_it():
    long = ["a" * 19, "b"]
    same(worker().generate(long, asked()), vanilla().generate(long, asked()))


def test_a_policy_with_qwix_adapters_is_sampled_with_them():
    qwix = pytest.importorskip("qwix")
    adapted = qwix.LoraProvider(module_path=".*(q_proj|kv_proj|down_proj)", rank=2, alpha=2.0)
    made = policy(3)
    made = qwix.apply_lora_to_model(made, adapted, **made.get_model_input(), rngs=nnx.Rngs(1))
    drawn = np.random.default_rng(1)
    nnx.update(made, jax.tree.map(
        lambda leaf: jnp.asarray(drawn.normal(0, 0.5, leaf.shape), leaf.dtype),
        nnx.state(made, nnx.LoRAParam),
    ))  # fmt: skip
    ours = JspecRollout(made, Letters(), method="prompt_lookup")
    found = ours.generate(PROMPTS, asked(max_tokens_to_generate=8))
    theirs = VanillaRollout(made, Letters(), CacheConfig(64, 2, 2, 8))
    same(found, theirs.generate(PROMPTS, asked(max_tokens_to_generate=8)))
    assert found.text != worker(3).generate(PROMPTS, asked(max_tokens_to_generate=8)).text
    assert ours.stats.num_rounds.shape == (len(PROMPTS),)


def test_a_pad_token_in_a_prompt_is_padding_as_in_tunix():
    """As where it ends turns too. Of this policy's answers none has one."""

    class Ending(Letters):
        def encode(self, text):
            return [0, *super().encode(text), 0, *super().encode(text)]

    ours = JspecRollout(policy(3), Ending(), drafter=jspec.Suffix())
    theirs = VanillaRollout(policy(3), Ending(), CacheConfig(64, 2, 2, 8))
    prompts = ["abc", "c"]
    same(ours.generate(prompts, asked()), theirs.generate(prompts, asked()))


def test_sampled_answers_repeat_themselves_and_are_scored_as_tunix_scores_them():
    """tunix draws with other noise, so that its sampled tokens are others."""
    ours, warm = worker(), asked(temperature=0.7, top_p=0.8, top_k=6, seed=5)
    one, again = (ours.generate(PROMPTS, warm) for _ in range(2))
    same(one, again)
    answers = np.zeros((len(PROMPTS), NEW), np.int32)
    for row, tokens in zip(answers, one.tokens, strict=True):
        row[: len(tokens)] = tokens
    scored = tunix.common.compute_per_token_logps(
        *nnx.split(ours.model()), jnp.asarray(one.left_padded_prompt_tokens), jnp.asarray(answers),
        pad_id=0, eos_id=2, temperature=0.7,
    )  # fmt: skip
    for row, logprobs, tokens in zip(np.asarray(scored), one.logprobs, one.tokens, strict=True):
        # tunix's scorer takes a pad token for padding, wherever it is.
        count = int((tokens == 0).argmax()) if (tokens == 0).any() else len(tokens)
        assert count > 2
        np.testing.assert_allclose(row[:count], logprobs[:count], atol=1e-5)


def test_an_answer_is_the_same_in_any_batch():
    ours, warm = worker(method="prompt_lookup"), asked(temperature=1.0, top_p=1.0)
    prompts = ["abcab", "c", "abcab", "hello"]
    whole = ours.generate(prompts, warm)
    assert whole.text[0] != whole.text[2], "the same prompt twice has two answers"
    for part in ([3, 1], [0, 2], [2, 3]):
        found = ours.generate([prompts[row] for row in part], warm)
        # Of the last pair "abcab" is the first of its kind.
        wanted = [0, 3] if part == [2, 3] else part
        assert found.text == [whole.text[row] for row in wanted]


def test_the_last_answers_are_drafts_and_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(tunix, "_MOST_ANSWERS", 4)
    rounds, decode = [], tunix.decode

    def counted(*args, **kwargs):
        rounds.append(decode(*args, **kwargs))
        return rounds[-1]

    monkeypatch.setattr(tunix, "decode", counted)
    ours, warm = worker(), asked(temperature=1.0, top_p=1.0)
    for prompts in (PROMPTS, PROMPTS[::-1], ["x", "y", "z"]):
        ours.generate(prompts, warm)
    first, again, _ = (np.asarray(result.stats.num_rounds) for result in rounds)
    # The order of the prompts is another.
    assert again.max() <= 3 and first.max() > 10
    assert len(ours._answers) == 4
    assert {prompt for prompt, _ in ours._answers} >= {"x", "y", "z"}


def test_a_policy_whose_attention_takes_no_tree_is_refused():
    for name, value, why in (
        ("sliding_window_size", 512, "sliding windows of 512 tokens"),
        ("use_flash_attention", True, "takes no mask"),
    ):
        with pytest.raises(jspec.InputError, match=why):
            JspecRollout(SimpleNamespace(config=SimpleNamespace(**{name: value})), Letters())


def test_a_drafter_takes_no_methods_options():
    for options in ({"method": "lookahead"}, {"num_speculative_tokens": 3}):
        with pytest.raises(
            jspec.InputError, match=r"drafter and .* were both given; leave one out"
        ):
            worker(drafter=jspec.Suffix(), **options)


def test_it_has_the_seven_methods():
    ours = worker()
    assert isinstance(ours, BaseRollout) and not type(ours).__abstractmethods__
    assert (ours.pad_id(), ours.eos_id()) == (0, 2)
    assert ours.model().config.vocab_size == VOCAB
    prompt, answer = jnp.array([[0, 1, 5]]), jnp.array([[6, 7, 2]])
    np.testing.assert_allclose(
        ours.get_per_token_logps(prompt, answer), vanilla().get_per_token_logps(prompt, answer),
        atol=1e-5,
    )  # fmt: skip


@pytest.mark.slow
def test_the_example_trains():
    example = runpy.run_path(str(EXAMPLE))
    example["train"](example["cluster"](method="suffix"), rollouts=1)
