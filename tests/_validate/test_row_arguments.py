"""Numbers for all rows or one per row, in any container: cast to the dtype they say."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec._validate.errors import InputError
from jspec._validate.row_arguments import end_tokens, integers, of_ragged, reals

LIMITS = dict(batch=3, name="limits", low=-(2**31), high=2**31 - 1, why="an id")
SIGNED = [np.int8, np.int16, np.int32]


def test_integers_mean_the_same_in_every_dtype():
    """JAX casts the bounds of a clip to the dtype of what is clipped: 300 is 44 in 8 bits."""
    for dtype in (*SIGNED, np.uint8, np.uint16, np.uint32):
        for library, high in itertools.product((np, jnp), (300, 2**31 - 1)):
            given = library.array([0, 1, 100], dtype)
            found = integers(given, **LIMITS | dict(low=0, high=high))
            assert found.dtype == np.int32
            assert found.tolist() == [0, 1, 100]


def test_traced_integers_are_made_to_lie_within_their_bounds():
    clamp = jax.jit(lambda given: integers(given, **LIMITS | dict(low=1, high=100)))
    whole = jax.jit(lambda given: integers(given, **LIMITS))
    for dtype in (*SIGNED, np.uint8, np.uint32):
        given = jnp.array([0, 7, 120], dtype)
        assert clamp(given).tolist() == [1, 7, 100]
        assert whole(given).tolist() == [0, 7, 120]


def test_an_id_of_more_than_31_bits_is_refused_where_it_is_known():
    with pytest.raises(InputError, match=r"limits\[1\] is 4294967295, outside"):
        integers(jnp.array([0, 2**32 - 1, 1], jnp.uint32), **LIMITS)
    traced = jax.jit(lambda given: integers(given, **LIMITS))
    assert traced(jnp.array([0, 2**32 - 1, 1], jnp.uint32)).tolist() == [0, 2**31 - 1, 1]


def test_traced_reals_are_made_to_lie_within_their_bounds():
    clamp = jax.jit(lambda given: reals(given, 3, "top_p", 1e-6, 1, "1 is off"))
    for dtype in (np.float32, np.float16, jnp.bfloat16, np.int32):
        found = clamp(jnp.array([-1, 0, 2], dtype))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, [1e-6, 1e-6, 1], rtol=1e-6)


def test_empty_end_tokens_mean_none_in_every_form():
    wanted = np.full((2, 4), -1)
    for none in (None, (), [], np.zeros(0), np.zeros((2, 0), np.int64)):
        found = end_tokens(none, 2, 10, "eos")
        assert found.dtype == np.int32 and np.array_equal(found, wanted)
    for wrong in ((0.5,), [True], ["a"]):
        with pytest.raises(InputError, match="eos"):
            end_tokens(wrong, 2, 10, "eos")


def test_prompts_of_unequal_lengths_are_padded_whatever_holds_them():
    rows = [5, 6, 7], [8], [9, 1]
    want = [[5, 6, 7], [8, 0, 0], [9, 1, 0]], [3, 1, 2]
    boxes = np.empty(3, object)
    boxes[:] = [list(row) for row in rows]
    kinds = (list(rows), tuple(map(tuple, rows)), [np.array(row, np.uint8) for row in rows])
    for given in (*kinds, [jnp.array(row) for row in rows], boxes):
        tokens, lengths = of_ragged(given, None)
        assert (tokens.tolist(), lengths.tolist()) == want
    traced = jax.jit(lambda given: of_ragged(given, None))([jnp.array(row) for row in rows])
    assert tuple(each.tolist() for each in traced) == want
    for alike in ([[1, 2], [3, 4]], [], [1, 2], np.ones((2, 3))):
        assert of_ragged(alike, None)[0] is alike
