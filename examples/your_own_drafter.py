"""A drafter in 30 lines: it remembers which token followed each token last time."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import jspec
from jspec import models, testing


@dataclass(frozen=True)
class Bigram(jspec.Drafter):
    """Drafts what followed each token when it last occurred in the text."""

    vocab_size: int
    num_speculative_tokens: int = 4

    def init(self, batch, capacity, earlier):
        """Returns an empty table, or an earlier call's."""
        empty = jnp.full((batch, self.vocab_size), -1, jnp.int32)
        if earlier is not None and earlier.shape != empty.shape:
            raise jspec.InputError(f"drafter_state is {earlier.shape}, not {empty.shape}")
        return empty if earlier is None else earlier

    def prefill(self, params, state, chunk):
        """Learns from a piece of the prompt."""
        return learn(state, chunk.tokens, chunk.read_lengths + 1)

    def draft(self, params, state, frame):
        """Returns a chain. An unknown follower is -1 in the table, and no node from there on."""
        tokens = [frame.root]
        for _ in range(self.num_speculative_tokens):
            last = tokens[-1]
            follower = jnp.take_along_axis(state, jnp.maximum(last, 0)[:, None], axis=1)[:, 0]
            tokens.append(jnp.where(last < 0, -1, follower))
        tokens = jnp.stack(tokens, axis=1)
        tree = jspec.tree.chain(self.num_speculative_tokens).fill(jnp.maximum(tokens, 0))
        return tree.replace(valid=tokens >= 0), None

    def update(self, params, state, aux, feedback):
        """Learns from the root and the tokens that the round added."""
        text = jnp.concatenate([feedback.tree.tokens[:, :1], feedback.emitted], axis=1)
        return learn(state, text, feedback.counts + 1)


def learn(table, text, lengths):
    """Enters each pair of neighbours; one at a time, so that the later of two equal tokens wins."""
    rows = jnp.arange(len(table))

    def enter(i, table):
        token = jnp.where(i + 1 < lengths, text[:, i], table.shape[1])  # off the end: not written
        return table.at[rows, token].set(text[:, i + 1], mode="drop")

    return jax.lax.fori_loop(0, text.shape[1] - 1, enter, table)


def main() -> None:
    """Decodes with it, and holds it to the contract of all drafters."""
    target = models.load("jspec-7m")
    prompt = [target.tokenizer.encode("Question: Tom has 3 apples and buys 4 more.").ids]
    drafter = Bigram(target.model.vocab_size)
    options = dict(max_new_tokens=48, stopping=jspec.Stopping(eos=target.eos))
    result = jspec.decode(target.model, target.params, prompt, drafter=drafter, **options)
    plain = jspec.decode(target.model, target.params, prompt, **options)
    assert (result.tokens == plain.tokens).all()
    print(f"{result.stats.mean_acceptance_length[0]:.2f} tokens per forward pass, the same tokens")

    model = testing.PrefixLM()
    testing.check_drafter(Bigram(model.vocab_size), model=model, model_params=model.init())
    print("it keeps the contract")


if __name__ == "__main__":
    main()
