"""Load a model, decode a prompt with speculation, and compare with plain decoding."""

# %% [markdown]
# # Quickstart
#
# A drafter writes the same tokens as plain decoding, in fewer forward passes of the model.
# Everything here runs on a CPU with a model that comes with the package.

# %%
import jspec

# %% [markdown]
# Build a drafter by its name, for a model: a bundled name, a folder in Hugging Face layout, a GGUF
# file, or a hub id. Its sizes fit the device. This one is EAGLE, with a head that was trained for
# this model and comes with it. `auto` needs no training.

# %%
llm = jspec.LLM("jspec-7m", "eagle")

# %% [markdown]
# Decode. Without `sampling` it is greedy.

# %%
prompt = "Once upon a time there was a little girl"
answer = llm.decode(prompt, max_new_tokens=64)
print(answer.texts[0])
stats = answer.result.stats
print(f"{stats.mean_acceptance_length[0]:.2f} tokens per forward pass of the model")

# %% [markdown]
# Plain decoding gives the same tokens, one per forward.

# %%
alone = jspec.LLM(llm.target, "autoregressive")
plain = alone.decode(prompt, max_new_tokens=64)
assert (answer.result.tokens == plain.result.tokens).all()
rounds = plain.result.stats.num_rounds[0]
print(f"{rounds} forward passes alone, {stats.num_rounds[0]} with a drafter")

# %% [markdown]
# Sampled tokens are the same too: the noise depends on the key and the position alone, so a draft
# cannot change what is drawn.

# %%
options = dict(max_new_tokens=64, sampling=jspec.Sampling(temperature=0.8, top_p=0.95), key=7)
sampled = llm.decode(prompt, **options)
assert (sampled.result.tokens == alone.decode(prompt, **options).result.tokens).all()
print(sampled.texts[0])

# %% [markdown]
# Below it is `jspec.decode`, a pure function of tokens: `jit`, `pmap` and `shard_map` take it
# whole.

# %%
tokens = [llm.target.tokenizer.encode(prompt).ids]
stopping = jspec.Stopping(eos=llm.target.eos)
result = jspec.decode(
    llm.model, llm.params, tokens, max_new_tokens=64, stopping=stopping, **llm.drafting
)
assert (result.tokens == plain.result.tokens).all()
