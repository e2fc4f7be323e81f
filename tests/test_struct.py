"""Arguments and results of calls compare."""

import copy

import jax
import numpy as np

import jspec
from jspec.testing import PrefixLM


def test_results_compare_by_their_arrays():
    model = PrefixLM(vocab_size=9)
    ask = dict(prompt=[[1, 2, 3]], max_new_tokens=3)
    state = jspec.prefill(model, model.init(), key=0, sampling=jspec.Sampling(), **ask)
    same, other = copy.deepcopy(state), state.replace(root=state.root + 1)
    assert state == same and state != other and state != state.controls
    assert state == jax.device_get(state)
    result = jspec.decode(model, model.init(), **ask)
    assert result == jspec.decode(model, model.init(), **ask)
    assert result != result.replace(stop_bytes=np.zeros(1, np.int32))
    assert jspec.Sampling() == jspec.Sampling() != jspec.Sampling(0.5)
