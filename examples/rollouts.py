"""Rollouts for reinforcement learning: samples with log-probabilities, weights that change.

In each epoch every prompt gets several answers, drawn by the weights of the epoch. Their
log-probabilities come along, so that none has to be computed again. The drafts of an epoch are the
answers of the one before: with the same key and ids the noise is the same, and weights that moved
little draw most of the tokens again. A stale draft is refused, and costs a little time. It changes
no token.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jspec
from jspec import models

NAME, EPOCHS, ANSWERS, TOKENS = "jspec-800k", 4, 8, 24
PROMPTS = ["Once upon a time", "One day, Tom", "The little dog was"]
WORD = " and"
"""The reward of an answer."""
DRAFTER = jspec.Suffix(num_speculative_tokens=12, max_depth=12)


def roll_out(
    model: jspec.CausalLM,
    params: Any,
    prompts: list[list[int]],
    key: int,
    last: jspec.Result | None = None,
    *,
    answers: int = ANSWERS,
    max_new_tokens: int = TOKENS,
) -> jspec.Result:
    """Returns several answers to each prompt, next to each other, and their log-probabilities.

    All epochs are one program: weights, the last answers and the key are arguments.

    Args:
        model, params: the policy.
        prompts: token ids.
        key: the same in each epoch, so that the noise is the same.
        last: of the epoch before; None in the first.
        answers: of each prompt.
        max_new_tokens: of each answer.
    """
    rows = [prompt for prompt in prompts for _ in range(answers)]
    lengths = np.array([len(row) for row in rows])
    padded = np.zeros((len(rows), lengths.max()), np.int32)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    none = jspec.Rollouts(
        np.zeros((len(rows), max_new_tokens), np.int32), np.zeros(len(rows), np.int32)
    )
    return jspec.decode(
        model,
        params,
        padded,
        lengths,
        drafter=DRAFTER,
        drafter_params=none if last is None else jspec.Rollouts(last.tokens, last.lengths),
        max_new_tokens=max_new_tokens,
        sampling=jspec.Sampling(temperature=1.0),
        key=key,
        # Of the emitted tokens alone, as `improved` computes them.
        processors=jspec.processors.logprobs(0, "temp_scaled_logprobs"),
    )


@partial(jax.jit, static_argnames="model")
def improved(model, params, texts, begins, lengths, advantages):
    """Returns the weights after one step of the policy gradient (Williams 1992) on the answers."""

    def loss(params):
        size = texts.shape[1]
        causal = jnp.tril(jnp.ones((1, size, size), bool))
        places = jnp.broadcast_to(jnp.arange(size), texts.shape)
        logits = model.apply(params, texts, places, causal, None).logits
        known = jax.nn.log_softmax(logits[:, :-1])
        chosen = jnp.take_along_axis(known, texts[:, 1:, None], axis=-1)[..., 0]
        at = jnp.arange(1, size)
        answer = (at >= begins[:, None]) & (at < (begins + lengths)[:, None])
        return -(advantages[:, None] * chosen * answer).sum() / answer.sum()

    step = jax.grad(loss)(params)
    return jax.tree.map(lambda weight, by: weight - 0.3 * by, params, step)


def main() -> None:
    target = models.load(NAME)
    prompts = [target.tokenizer.encode(prompt).ids for prompt in PROMPTS]
    params, result = target.params, None
    for epoch in range(EPOCHS):
        result = roll_out(target.model, params, prompts, 0, result)
        lengths = np.asarray(result.lengths)
        texts = [
            target.tokenizer.decode(row[:count].tolist())
            for row, count in zip(np.asarray(result.tokens), lengths, strict=True)
        ]
        rewards = np.array([text.count(WORD) for text in texts], np.float32)
        baseline = rewards.reshape(-1, ANSWERS).mean(1).repeat(ANSWERS)
        drawn = float(np.asarray(result.logprobs.token_logprobs).sum() / lengths.sum())
        pace = float(result.stats.mean_acceptance_length.mean())
        print(
            f"epoch {epoch}: reward {rewards.mean():.2f}, log-probability of a token {drawn:.2f}, "
            f"tokens per forward pass {pace:.2f}"
        )
        begins = np.repeat([len(prompt) for prompt in prompts], ANSWERS)
        whole = np.zeros((len(texts), begins.max() + TOKENS), np.int32)
        for row, begin in enumerate(begins):
            whole[row, :begin] = prompts[row // ANSWERS]
            whole[row, begin : begin + lengths[row]] = result.tokens[row, : lengths[row]]
        params = improved(target.model, params, whole, begins, lengths, rewards - baseline)


if __name__ == "__main__":
    main()
