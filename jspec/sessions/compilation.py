"""The folders that keep what a first run finds out: compiled code, and what rounds cost."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def keep_on_disk() -> None:
    """Tells JAX to cache every compiled program. Without a folder to write to, it caches none."""
    import jax

    current: Any = jax.config  # its names are made when JAX starts
    # JAX reads JAX_COMPILATION_CACHE_DIR itself.
    if current.jax_compilation_cache_dir is None:
        place = folder(os.environ, "compiled")
        if place is None:
            return
        jax.config.update("jax_compilation_cache_dir", str(place))
    # By default only what took a second to compile is kept; a start compiles many small programs.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def folder(environment: Mapping[str, str], part: str) -> Path | None:
    """Returns a folder in $JSPEC_CACHE, else jspec in the user's cache; None if not writable."""
    try:
        chosen = environment.get("JSPEC_CACHE")
        caches = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        place = (Path(chosen).expanduser() if chosen else Path(caches) / "jspec") / part
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return None
    return place if os.access(place, os.W_OK | os.X_OK) else None
