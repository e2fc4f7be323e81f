"""What is kept in the user's folder: compiled programs."""

import jax
import pytest

from jspec._validate.cache_folders import folder
from jspec._validate.errors import InputError
from jspec.sessions import compilation


@pytest.fixture
def unset(monkeypatch):
    """JAX's own settings, put back afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    kept = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in kept.items():
        jax.config.update(name, value)


def test_the_folder_is_the_users(tmp_path):
    wanted = tmp_path / "jspec" / "compiled"
    assert folder({"XDG_CACHE_HOME": str(tmp_path)}, "compiled") == wanted and wanted.is_dir()
    own = {"XDG_CACHE_HOME": str(tmp_path), "JSPEC_CACHE": str(tmp_path / "own")}
    assert folder(own, "compiled") == tmp_path / "own" / "compiled"


def test_without_a_place_to_write_nothing_is_kept(tmp_path, monkeypatch, unset):
    (tmp_path / "file").write_text("")
    assert folder({"JSPEC_CACHE": str(tmp_path / "file")}, "compiled") is None
    monkeypatch.setenv("JSPEC_CACHE", str(tmp_path / "file"))
    compilation.keep_on_disk()
    assert jax.config.jax_compilation_cache_dir is None


def test_a_platform_that_is_not_there_is_a_sentence(monkeypatch):
    def fail():
        raise AssertionError

    monkeypatch.setattr(jax, "default_backend", fail)
    with pytest.raises(InputError, match=r"JAX cannot start the platform \w+ \(no plugin\)"):
        compilation.keep_on_disk()


def test_the_users_jax_settings_hold(tmp_path, monkeypatch, unset):
    monkeypatch.setenv("JSPEC_CACHE", str(tmp_path))
    compilation.keep_on_disk()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "compiled")
    jax.config.update("jax_compilation_cache_dir", "elsewhere")
    compilation.keep_on_disk()
    assert jax.config.jax_compilation_cache_dir == "elsewhere"
