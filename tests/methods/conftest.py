"""The models that methods are built for."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny

from jspec.models import heads, load
from jspec.models.load import Loaded

WORDS = SimpleNamespace(get_vocab=lambda: {str(i): i for i in range(tiny.VOCAB)})


def _loaded(model, words=WORDS):
    return Loaded(model, tiny.params(model), words, eos=(), bos=None)


@pytest.fixture(scope="session")
def loaded():
    """A function: a tiny model as `jspec.models.load` gives one, with the words of all of them."""
    return _loaded


@pytest.fixture(scope="session")
def target():
    return _loaded(tiny.model())


@pytest.fixture(scope="session")
def draft():
    return replace(_loaded(tiny.draft()), mask_token=tiny.VOCAB - 1)


@pytest.fixture(scope="session")
def bundled():
    return load("jspec-7m")


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
