"""Compiled code that is kept on disk."""

import os
from typing import Any

from jspec._validate.cache_folders import folder
from jspec._validate.errors import InputError


def keep_on_disk() -> None:
    """Tells JAX to cache every compiled program. Without a folder to write to, it caches none.

    Raises InputError if JAX starts no platform: commands call this before anything is read.
    """
    import jax

    current: Any = jax.config  # its names are made when JAX starts
    try:
        jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # it asserts where no plugin is installed
        raise InputError(
            f"JAX cannot start the platform {current.jax_platforms or 'of this machine'} "
            f"({str(error) or 'no plugin'}); install its extra of jspec, such as cuda, or leave "
            "JAX_PLATFORMS out"
        ) from error
    # JAX reads JAX_COMPILATION_CACHE_DIR itself.
    if current.jax_compilation_cache_dir is None:
        place = folder(os.environ, "compiled")
        if place is None:
            return
        jax.config.update("jax_compilation_cache_dir", str(place))
    # By default only what took a second to compile is kept; a start compiles many small programs.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
