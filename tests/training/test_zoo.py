"""The bundled models: they open, belong together, and stay small."""

from dataclasses import replace
from pathlib import Path

import jax
import pytest

import jspec
from jspec.methods import ngram_tables
from jspec.models.load import load

ZOO = Path(__file__).parents[2] / "models" / "zoo"


@pytest.fixture(scope="module")
def models():
    return {name: load(ZOO / name) for name in ("jspec-7m", "jspec-800k")}


def test_the_draft_is_eight_times_smaller_and_speaks_the_same_tokens(models):
    target, draft = models["jspec-7m"], models["jspec-800k"]
    sizes = [sum(x.size for x in jax.tree.leaves(loaded.params)) for loaded in (target, draft)]
    assert sizes[0] >= 8 * sizes[1]
    assert target.tokenizer.to_str() == draft.tokenizer.to_str()
    assert target.tokenizer.get_vocab_size() == target.model.vocab_size == draft.model.vocab_size
    assert target.eos == draft.eos == (target.tokenizer.token_to_id("<|endoftext|>"),)


def test_a_table_is_found_by_the_weights_it_was_made_of(models):
    """And draws nothing where there are shapes alone, or other weights."""
    target = models["jspec-7m"]
    found = ngram_tables.find(target)
    assert found is not None and Path(found).parts[-2:] == ("jspec-7m", ngram_tables.FILE)
    table = ngram_tables.load("jspec-7m", target)
    assert table.line_of_token.shape == (target.model.vocab_size,)
    abstract = replace(target, params=jax.eval_shape(lambda: target.params))
    assert ngram_tables.find(models["jspec-800k"]) is None is ngram_tables.find(abstract)
    with pytest.raises(jspec.InputError, match="is a table of another model's distributions"):
        ngram_tables.load("jspec-7m", models["jspec-800k"])
