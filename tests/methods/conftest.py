"""The models that methods are built for."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
import tiny

from jspec.models import heads, load
from jspec.models.heads.block import BlockConfig, BlockHead
from jspec.models.heads.registry import shapes
from jspec.models.load import Loaded


def _words(vocabulary, added=()):
    """Returns the parts of a tokenizer that are used."""
    return SimpleNamespace(
        get_vocab=lambda: vocabulary, get_added_tokens_decoder=lambda: dict.fromkeys(added)
    )


WORDS = _words({str(i): i for i in range(tiny.VOCAB)})


def _loaded(model, words=WORDS):
    return Loaded(model, tiny.params(model), words, eos=(), bos=None)


@pytest.fixture(scope="session")
def words():
    """A function: the tokenizer of a vocabulary, some of whose tokens are added ones."""
    return _words


@pytest.fixture(scope="session")
def loaded():
    """A function: a tiny model as `jspec.models.load` gives one, with the words of all of them."""
    return _loaded


@pytest.fixture(scope="session")
def target():
    return _loaded(tiny.model())


@pytest.fixture(scope="session")
def draft():
    return replace(_loaded(tiny.draft()), mask_token_id=tiny.VOCAB - 1)


@pytest.fixture(scope="session")
def bundled():
    return load("jspec-7m")


@pytest.fixture(scope="session")
def block_head(tmp_path_factory, bundled):
    """The folder of a head for jspec-7m that drafts 6 tokens; all its weights are 0."""
    folder = tmp_path_factory.mktemp("block") / "head"
    shape = dict(taps=(2, 4, 6), block_size=6, markov_rank=4, confidence_width=260)
    head = BlockHead(BlockConfig(4096, 256, 688, 1, 4, 2, 64, 1024, **shape))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes(head))
    heads.save(folder, head, zeros, bundled)
    return str(folder)


@pytest.fixture
def heads_once(monkeypatch, bundled):
    """Bundled heads are read from their files once: a method is built of them a hundred times."""
    read = heads.load

    def known(name, target, **options):
        if target is not bundled:
            return read(name, target, **options)
        place = str(name), *options.values()
        if place not in _READ:
            _READ[place] = read(name, target, **options)
        return _READ[place]

    monkeypatch.setattr(heads, "load", known)


_READ = {}
