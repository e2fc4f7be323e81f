"""Unequal prompts in one batch, settings by row, streaming, your own loop, a hot start."""

import jax.numpy as jnp

import jspec
from jspec import models

target = models.load("jspec-7m")
drafter = jspec.Suffix(num_speculative_tokens=8)
tokenizer = target.tokenizer


def text(tokens) -> str:
    """Returns what the model wrote."""
    return tokenizer.decode(list(map(int, tokens)))


# Rows are padded on the right; `prompt_lengths` says where each ends.
prompts = ["Once upon a time", "Question: Tom has 3 apples and buys 4 more.", "def add(a, b):"]
ids = [tokenizer.encode(prompt).ids for prompt in prompts]
lengths = jnp.array([len(row) for row in ids])
prompt = jnp.array([row + [0] * (max(map(len, ids)) - len(row)) for row in ids])

# Every setting may be one number, or one per row. They are traced: changing one compiles nothing.
result = jspec.decode(
    target.model,
    target.params,
    prompt,
    lengths,
    drafter=drafter,
    max_new_tokens=48,
    stopping=jspec.Stopping(max_tokens=jnp.array([48, 32, 16]), eos=target.eos),
    sampling=jspec.Sampling(temperature=jnp.array([0.0, 0.7, 1.0]), top_p=0.95),
    key=0,
)
for row, prompt_text in enumerate(prompts):
    status = jspec.Status(int(result.status[row])).name
    print(f"{prompt_text!r} ({status}): {text(result.tokens[row, : result.lengths[row]])!r}")

# Streaming: a chunk after each round. Together they are decode's tokens.
streamed: list[list[int]] = [[] for _ in prompts]
for chunk in jspec.stream(
    target.model,
    target.params,
    prompt,
    lengths,
    drafter=drafter,
    max_new_tokens=48,
    stopping=jspec.Stopping(max_tokens=jnp.array([48, 32, 16]), eos=target.eos),
    sampling=jspec.Sampling(temperature=jnp.array([0.0, 0.7, 1.0]), top_p=0.95),
    key=0,
):
    for row, tokens in zip(streamed, chunk.tokens, strict=True):
        row.extend(tokens)
for row, tokens in enumerate(streamed):
    assert tokens == result.tokens[row, : result.lengths[row]].tolist()

# A loop of one's own: `prefill`, then `step` round by round. `step` donates the state.
state = jspec.prefill(
    target.model,
    target.params,
    prompt,
    lengths,
    drafter=drafter,
    max_new_tokens=48,
    stopping=jspec.Stopping(eos=target.eos),
)
rounds = 0
while not state.done.all() and rounds < 100:  # stop whenever you like
    state = jspec.step(target.model, target.params, state, drafter=drafter)
    rounds += 1
print(f"{int(state.lengths.sum())} tokens of {len(prompts)} rows in {rounds} rounds")

# Hot start: what the drafter learnt goes with its state into the next call.
again = jspec.decode(
    target.model,
    target.params,
    prompt,
    lengths,
    drafter=drafter,
    drafter_state=state.drafter_state,
    max_new_tokens=48,
    stopping=jspec.Stopping(eos=target.eos),
)
for row in range(len(prompts)):
    count = int(again.lengths[row])
    assert again.tokens[row, :count].tolist() == state.tokens[row, :count].tolist()
cold = state.stats.mean_acceptance_length.mean()
hot = again.stats.mean_acceptance_length.mean()
print(f"tokens per forward pass: cold {cold:.2f}, after a hot start {hot:.2f}")
