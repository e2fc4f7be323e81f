"""A node of a tree has the bits of its token in plain decoding, in every family and dtype."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import jspec.models
from jspec import testing
from jspec._xla import native

pytestmark = pytest.mark.skipif(native.instruction_set() is None, reason=str(native.missing()))


def texts(model, count=3, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(0, model.vocab_size, size).tolist() for size in (14, 9, 11)[:count]]


def has_kernels(model):
    """Returns whether it has no latents and no sinks, which XLA scores: docs/exactness.md."""
    config = model.config
    return getattr(config, "latent", None) is None and not getattr(config, "sinks", False)


def test_every_family_in_float32(variant):
    model = variant.model
    found = testing.check_bits(model, variant.params, texts(model), sizes=[6], batch_size=3)
    assert found.equal is has_kernels(model), found
    assert found.num_nodes == 34 and found.num_numbers > 34 * 64


@pytest.mark.parametrize("scan_layers", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_bundled_model(scan_layers):
    loaded = jspec.models.load("jspec-800k", scan_layers=scan_layers)
    found = testing.check_bits(loaded.model, loaded.params, texts(loaded.model, 2), sizes=[3, 16])
    assert found.equal, found


def test_a_gpu_is_said_to_have_xlas_products():
    """Whatever kernels the host's processor has."""
    found = testing.Bits(10, 640, 3, (1, 4), 1, None, "NVIDIA H100 80GB HBM3")
    assert "3 differ" in str(found) and "(XLA's products, NVIDIA H100 80GB HBM3)" in str(found)


def test_weights_that_differ_in_their_last_bits_are_found():
    """Another negative control: trees are scored with weights that are larger by a millionth."""
    loaded = jspec.models.load("jspec-800k")
    (text,) = texts(loaded.model, 1)
    plain = testing.check_bits(loaded.model, loaded.params, [text], sizes=[1])
    assert plain.equal

    class Moved:
        """The model, whose trees are scored with other weights."""

        def __getattr__(self, name):
            return getattr(loaded.model, name)

        def __hash__(self):
            return hash(loaded.model)

        def apply(self, params, tokens, *arguments):
            if tokens.shape[1] > 1:
                params = jax.tree.map(lambda leaf: leaf * (1 + 2**-20), params)
            return loaded.model.apply(params, tokens, *arguments)

    assert not testing.check_bits(Moved(), loaded.params, [text], sizes=[4]).equal


def test_bad_input_is_a_sentence():
    model = jspec.models.shapes("jspec-800k").model
    for arguments, said in (
        (dict(texts=[]), "there are 0 texts; pass one or more"),
        (dict(texts=[[1], []]), "none of them empty"),
        (dict(texts=[[1]], batch_size=0), "batch_size"),
        (dict(texts=[[1]], sizes=[0]), "sizes"),
        (dict(texts=[[1] * 9999]), "a text has 9999 tokens and the model places .*; cut it"),
    ):
        with pytest.raises(jspec.InputError, match=said):
            testing.check_bits(model, None, **arguments)


ALL_OPTIMISATIONS = """
import sys
from pathlib import Path
import numpy as np
from jspec import models, testing
for folder in sys.argv[1:]:
    loaded = models.load(folder, dtype="float32", with_tokenizer=False)
    texts = np.random.default_rng(0).integers(0, loaded.model.vocab_size, (4, 40)).tolist()
    found = testing.check_bits(loaded.model, loaded.params, texts, sizes=(1, 2, 5, 8, 16))
    assert found.equal and found.kernels, (folder, found)
"""


@pytest.mark.slow
def test_with_all_optimisations_too(fixtures, tmp_path):
    """Optimisations that tests switch off, by which XLA rounds in fewer or other places."""
    names = ["opt_norms_behind_projected", "pythia", "gemma3", "qwen3_moe"]
    folders = [str(fixtures / name) for name in names]
    variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    # Elsewhere, the installed jspec, which has kernels; a checkout beside a wheel has none.
    ran = subprocess.run(
        [sys.executable, "-c", ALL_OPTIMISATIONS, *folders],
        env=variables, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
