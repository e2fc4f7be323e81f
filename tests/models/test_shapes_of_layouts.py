"""The shapes of a model that is not there are those that loading it would give."""

import jax
import pytest

import jspec


@pytest.mark.parametrize("how", [dict(), dict(scan_layers=True, param_dtype="int8")])
def test_shapes_are_those_of_the_loaded_weights(how, fixtures):
    described = jspec.models.shapes(fixtures / "mixtral", **how)
    loaded = jspec.models.load(fixtures / "mixtral", **how, with_tokenizer=False)
    assert described.model == loaded.model
    each = [
        jax.tree.map(lambda x: (x.shape, x.dtype), found.params) for found in (described, loaded)
    ]
    assert each[0] == each[1]
