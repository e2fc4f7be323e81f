"""`jspec train head --kind ngrams`: tables of the target's distributions; kills, bad input."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jspec import models
from jspec.drafters.contrib import ngrams
from jspec.models.fingerprint import fingerprint

V = 270


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of text of which each but the last fills a sequence."""
    path = tmp_path_factory.mktemp("ngrams") / "rows.jsonl"
    rows = np.random.default_rng(0).integers(1, 9, (13, 9)).tolist()
    rows[-1] = rows[-1][:5]
    path.write_text("".join(json.dumps({"tokens": row}) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def asked(folder, rows, train):
    def run(out, *arguments):
        given = ["--kind", "ngrams", rows, "--model", folder / "model", "--out", out]
        given += ["--sequence", 8, "--batch-size", 5, "--heldout", 0, *arguments]
        return train("head", *given)

    return run


def test_the_table_has_the_targets_distributions(folder, rows, asked, tmp_path):
    code, said = asked(
        tmp_path / "table", "--candidates", 3, "--states", tmp_path / "distributions"
    )
    assert code == 0 and "of 113 tokens of text in" in said
    target = models.load(folder / "model")
    weights = fingerprint(target.params, target.model)
    table = ngrams.load(tmp_path / "table", weights, V)
    read = [json.loads(line)["tokens"] for line in rows.open()]
    text, live = np.zeros((13, 9), np.int32), np.zeros((13, 9), bool)
    for row, tokens in enumerate(read):
        text[row, : len(tokens)], live[row, : len(tokens)] = tokens, True
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((9, 9), bool)), (13, 9, 9))
    places = jnp.broadcast_to(jnp.arange(9), (13, 9))
    logits = jax.jit(target.model.apply)(target.params, text, places, mask, None).logits
    values, tokens = jax.lax.top_k(logits, 16)
    distributions = np.asarray(tokens), np.asarray(jax.nn.softmax(values, axis=-1))
    want = ngrams.table(ngrams.build(text, distributions, V, 3, live))
    np.testing.assert_array_equal(table.keys, want.keys)
    np.testing.assert_array_equal(table.tokens, want.tokens)
    np.testing.assert_allclose(table.probs, want.probs, atol=1e-3)
    # What was read is there, and a second run with half of it goes on.
    states = tmp_path / "distributions/states.bin"
    states.write_bytes(states.read_bytes()[: states.stat().st_size // 2])
    code, said = asked(
        tmp_path / "again", "--candidates", 3, "--states", tmp_path / "distributions"
    )
    assert code == 0
    for name, array in load_file(tmp_path / "table").items():
        np.testing.assert_array_equal(load_file(tmp_path / "again")[name], array)
