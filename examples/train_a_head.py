"""Train Medusa's heads briefly on what the target writes, save them, decode with them.

A demonstration: seconds of training on a handful of texts, and measured on the prompts that it
learnt from. `jspec train head --kind medusa` does it in earnest, with checkpoints and held-out
text.
"""

import tempfile
from pathlib import Path

import jax.numpy as jnp

import jspec
from jspec import models
from jspec.models import heads
from jspec.models.heads.medusa import MedusaConfig, MedusaHeads, fresh
from jspec.training import loop
from jspec.training.medusa import Ahead
from jspec.training.unroll import Batch

STEPS = 20

target = models.load("jspec-800k")
beginnings = ["Once upon a time", "Question: How many", "def add(", "The little dog", "One day a"]
ids = [target.tokenizer.encode(beginning).ids for beginning in beginnings]
lengths = jnp.array([len(row) for row in ids])
width = max(map(len, ids))
prompt = jnp.array([row + [0] * (width - len(row)) for row in ids])

# 1. Text that the target writes itself: that is what its heads will have to foretell.
NEW = 64
written = jspec.decode(target.model, target.params, prompt, lengths, max_new_tokens=NEW)
places = jnp.arange(width + NEW)
index = jnp.clip(places - lengths[:, None], 0, NEW - 1)
padded = jnp.pad(prompt, ((0, 0), (0, NEW)))
after = jnp.take_along_axis(written.tokens, index, axis=1)
tokens = jnp.where(places < lengths[:, None], padded, after)
batch = Batch(tokens=tokens, live=places < (lengths + written.lengths)[:, None])

# 2. Three heads on the target's last state; the target is frozen.
head = MedusaHeads(MedusaConfig(target.model.vocab_size, target.model.features, num_heads=3))
params = fresh(head, target.params)
objective = Ahead(target.model, head)
recipe = loop.Recipe(steps=STEPS, learning_rate=3e-3, warmup=5)
state = loop.start(recipe, params)
for step in range(STEPS):
    state, loss, _, metrics = loop.update(
        objective, recipe, state, {"target": target.params}, batch
    )
    if step % 5 == 0 or step == STEPS - 1:
        accuracy = " ".join(f"{share:.2f}" for share in metrics["accuracy"].tolist())
        print(f"step {step:2d}: loss {loss:.3f}, accuracy by head {accuracy}")

# 3. Save and load: a head's file is bound to the weights that it was trained for.
with tempfile.TemporaryDirectory() as folder:
    heads.save(Path(folder) / "head", head, {"params": state.params}, target)
    loaded = heads.load(Path(folder) / "head", target)

# 4. Decode.
drafter = jspec.Medusa(loaded.head, template=jspec.tree.branching([2, 1, 1]))
result = jspec.decode(
    loaded.target.model,
    loaded.target.params,
    prompt,
    lengths,
    drafter=drafter,
    drafter_params=loaded.params,
    max_new_tokens=NEW,
)
assert (result.tokens == written.tokens).all()
print(f"{result.stats.mean_acceptance_length.mean():.2f} tokens per forward pass, the same tokens")
