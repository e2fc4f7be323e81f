"""JAX may count in 64 bits; the tokens do not change."""

import json
import subprocess
import sys
from pathlib import Path

import compiling
import pytest
import tiny

import jspec

SAMPLED = dict(sampling=dict(temperature=0.8, top_p=0.9, top_k=9), key=7)
# In a process of its own, since constants are made when a module is imported.
SCRIPT = """
import json, sys
import jax, tiny, jspec
from contract.methods import DRAFTERS
model = tiny.model()
params = jax.tree.map(lambda leaf: leaf.astype("float32"), tiny.params(model))
assert jax.numpy.arange(2).dtype == "int64"
for name, options in json.loads(sys.argv[1]):
    if "sampling" in options:
        options["sampling"] = jspec.Sampling(**options["sampling"])
    drafter, weights = DRAFTERS[name]
    weights = jax.tree.map(lambda leaf: leaf.astype("float32"), weights)
    result = jspec.decode(
        model, params, tiny.PROMPTS, tiny.LENGTHS, drafter=drafter, drafter_params=weights,
        max_new_tokens=12, **options
    )
    print(json.dumps(result.tokens.tolist()))
"""


@pytest.mark.parametrize(
    "runs",
    [
        [("coupled_tree", SAMPLED)],
        pytest.param(
            [
                ("merge", {}),
                ("adaptive", SAMPLED),
                ("dynamic_token_recycling", SAMPLED),
                ("pard", SAMPLED),
            ],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_tokens_of_64_bits_are_those_of_plain_decoding_in_32(target, runs):
    """That drafted tokens are plain decoding's in 32 bits is held by the contract."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(runs)],
        env=compiling.environment(JAX_ENABLE_X64="1", PYTHONPATH=str(Path(__file__).parent)),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    for (_, options), tokens in zip(runs, found, strict=True):
        if options:
            options = options | {"sampling": jspec.Sampling(**options["sampling"])}
        plain = jspec.decode(*target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=12, **options)
        assert tokens == plain.tokens.tolist()
