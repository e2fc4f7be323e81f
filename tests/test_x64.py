"""JAX may count in 64 bits; the tokens do not change."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import jax, tiny, jspec
from contract.methods import DRAFTERS
model = tiny.model()
params = jax.tree.map(lambda leaf: leaf.astype("float32"), tiny.params(model))
sampled = dict(sampling=jspec.Sampling(0.8, top_p=0.9, top_k=9), key=7)
names = "merge", "coupled_tree", "mixture", "dynamic_token_recycling"
for name, options in (("merge", {}), *((name, sampled) for name in names)):
    drafter, weights = DRAFTERS[name]
    weights = jax.tree.map(lambda leaf: leaf.astype("float32"), weights)
    result = jspec.decode(
        model, params, tiny.PROMPTS, tiny.LENGTHS, drafter=drafter, drafter_params=weights,
        max_new_tokens=12, **options
    )
    print(result.tokens.tolist())
"""


def test_the_tokens_of_64_bits_are_those_of_32():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"JAX_ENABLE_X64": flag, "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for flag in ("0", "1")
    ]
    assert outputs[0].strip()
    assert outputs[0] == outputs[1]
