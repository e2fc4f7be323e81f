"""JAX may count in 64 bits; the tokens do not change."""

import json
import subprocess
import sys
from pathlib import Path

import compiling
import jax
import pytest
import tiny

import jspec
from jspec.testing import PrefixLM

SAMPLED = dict(sampling=dict(temperature=0.8, top_p=0.9, top_k=9), key=7)
# In a process of its own, since constants are made when a module is imported.
SCRIPT = """
import json, sys
import jax, tiny, jspec
from contract.methods import call_of
model = tiny.model()
params = jax.tree.map(lambda leaf: leaf.astype("float32"), tiny.params(model))
assert jax.numpy.arange(2).dtype == "int64"
for name, options in json.loads(sys.argv[1]):
    if "sampling" in options:
        options["sampling"] = jspec.Sampling(**options["sampling"])
    drafting = call_of(name)
    weights = drafting.pop("drafter_params")
    weights = jax.tree.map(lambda leaf: leaf.astype("float32"), weights)
    result = jspec.decode(
        model, params, tiny.PROMPTS, tiny.LENGTHS, **drafting, drafter_params=weights,
        max_new_tokens=12, **options
    )
    print(json.dumps(result.tokens.tolist()))
"""


RUNS = [
    ("coupled_tree", SAMPLED),
    ("merge", {}),
    ("adaptive", SAMPLED),
    ("spine", SAMPLED),
    ("pard", SAMPLED),
]


@pytest.mark.slow
def test_the_tokens_of_64_bits_are_those_of_plain_decoding_in_32(target):
    """Compares with 64 bits; the contract covers 32 bits."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(RUNS)],
        env=compiling.environment(JAX_ENABLE_X64="1", PYTHONPATH=str(Path(__file__).parents[1])),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    for (_, options), tokens in zip(RUNS, found, strict=True):
        if options:
            options = options | {"sampling": jspec.Sampling(**options["sampling"])}
        plain = jspec.decode(*target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=12, **options)
        assert tokens == plain.tokens.tolist()


def test_a_call_in_64_bits_has_the_tokens_of_one_in_32():
    """In this process, where constants of modules stay in 32 bits."""
    model = PrefixLM(vocab_size=tiny.VOCAB)
    drafter = jspec.merge(
        jspec.TokenRecycling(tiny.VOCAB, jspec.tree.branching([2])),
        jspec.PromptLookup(num_speculative_tokens=2),
    )
    options = dict(sampling=jspec.Sampling(**SAMPLED["sampling"]), key=7, max_new_tokens=12)
    call = (model, model.init(), tiny.PROMPTS, tiny.LENGTHS)
    plain = jspec.decode(*call, **options)
    with jax.enable_x64(True):
        assert jax.numpy.arange(2).dtype == "int64"
        drafted = jspec.decode(*call, drafter=drafter, **options)
    assert drafted.tokens.tolist() == plain.tokens.tolist()
    assert int(drafted.stats.num_accepted_tokens.sum()) > 0
