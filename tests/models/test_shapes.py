"""The shapes of a model that is not there are those that loading it would give."""

import jax
import pytest

import jspec
from jspec._xla import native


@pytest.mark.parametrize("name", ["jspec-800k", "mixtral"])
@pytest.mark.parametrize("how", [dict(), dict(scan_layers=True, dtype="int8")])
def test_shapes_are_those_of_the_loaded_weights(name, how, fixtures):
    path = fixtures / name if name == "mixtral" else name
    described = jspec.models.shapes(path, **how)
    with native.disabled():  # with kernels, tables may stay in fewer bits
        loaded = jspec.models.load(path, **how, with_tokenizer=False)
    assert (described.model, described.eos) == (loaded.model, loaded.eos)
    each = [
        jax.tree.map(lambda x: (x.shape, x.dtype), found.params) for found in (described, loaded)
    ]
    assert each[0] == each[1]


@pytest.mark.parametrize(
    ("name", "billions", "digits"),
    [
        ("deepseek-v3", 671.0, 1),
        ("gpt-oss-20b", 20.91, 2),
        pytest.param("gemma4-e2b", 2.3, 1, marks=pytest.mark.slow),
        pytest.param("gpt-oss-120b", 116.83, 2, marks=pytest.mark.slow),
        pytest.param("qwen3-next-80b", 80.0, 0, marks=pytest.mark.slow),
    ],
)
def test_published_shapes_have_the_published_numbers_of_parameters(name, billions, digits):
    """arXiv 2412.19437, section 4.2, without the head for several tokens; 2508.10925, table 1.

    Gemma's cards count without per-layer embeddings, and Qwen3-Next's name is all there is.
    """
    params = dict(jspec.models.shapes(name, scan_layers=True).params["params"])
    params.pop("per_layer_embed", None)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert round(count / 1e9, digits) == billions
