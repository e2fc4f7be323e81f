"""Shapes of a model are those of what is loaded."""

import jax

from jspec import models
from jspec._xla import native


def test_shapes_are_those_of_what_is_loaded_scanned_and_in_8_bits():
    for asked in (
        {},
        dict(dtype="float32", scan_layers=True),
        dict(dtype="int8", scan_layers=True),
    ):
        with native.disabled():  # with kernels, tables may stay in fewer bits
            target = models.load("jspec-800k", with_tokenizer=False, **asked)
        shaped = models.shapes("jspec-800k", **asked)
        assert shaped.model == target.model and shaped.eos == target.eos
        same = jax.tree.map(
            lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), shaped.params, target.params
        )
        assert jax.tree.all(same)
