"""Load a model, decode a prompt with speculation, and compare with plain decoding."""

# %% [markdown]
# # Quickstart
#
# `jspec.decode` writes the same tokens as plain decoding, in fewer forward passes of the model.
# Everything here runs on a CPU with a model that comes with the package.

# %%
import jspec
from jspec import models

# %% [markdown]
# Load a model: a bundled name, a folder in Hugging Face layout, or a hub id.

# %%
target = models.load("jspec-7m")
prompt = [target.tokenizer.encode("Once upon a time there was a little girl").ids]

# %% [markdown]
# Build a drafter by its name. Its sizes fit the device. This one is EAGLE, with a head that was
# trained for this model and comes with it. `token_recycling+suffix` needs no training.

# %%
built = jspec.methods.build("eagle", target)

# %% [markdown]
# Decode. `sampling=None` is greedy.

# %%
result = jspec.decode(
    built.model,
    target.params,
    prompt,
    drafter=built.drafter,
    drafter_params=built.drafter_params,
    max_new_tokens=64,
    eos=target.eos,
)
print(target.tokenizer.decode(result.tokens[0, : result.lengths[0]].tolist()))
print(f"{result.stats.mean_acceptance_length[0]:.2f} tokens per forward pass of the model")

# %% [markdown]
# Plain decoding gives the same tokens, one per forward.

# %%
plain = jspec.decode(target.model, target.params, prompt, max_new_tokens=64, eos=target.eos)
assert (result.tokens == plain.tokens).all()
print(
    f"{plain.stats.num_rounds[0]} forward passes alone, {result.stats.num_rounds[0]} with a drafter"
)

# %% [markdown]
# Sampled tokens are the same too: the noise depends on the key and the position alone, so a draft
# cannot change what is drawn.

# %%
options = dict(
    max_new_tokens=64,
    eos=target.eos,
    sampling=jspec.Sampling(temperature=0.8, top_p=0.95),
    key=7,
)
sampled = jspec.decode(
    built.model,
    target.params,
    prompt,
    drafter=built.drafter,
    drafter_params=built.drafter_params,
    **options,
)
assert (sampled.tokens == jspec.decode(target.model, target.params, prompt, **options).tokens).all()
print(target.tokenizer.decode(sampled.tokens[0, : sampled.lengths[0]].tolist()))
