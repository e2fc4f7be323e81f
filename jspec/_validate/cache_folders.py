"""The folders of the user's cache, which keep what a first run finds out."""

import os
from collections.abc import Mapping
from pathlib import Path


def locate(environment: Mapping[str, str], part: str) -> Path | None:
    """Returns where a folder is: in $JSPEC_CACHE, else jspec in the user's cache."""
    try:
        root = environment.get("JSPEC_CACHE")
        caches = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return (Path(root).expanduser() if root else Path(caches) / "jspec") / part
    except RuntimeError:
        return None


def folder(environment: Mapping[str, str], part: str) -> Path | None:
    """Returns the same folder, made; None if it is not writable."""
    place = locate(environment, part)
    if place is None:
        return None
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return place if os.access(place, os.W_OK | os.X_OK) else None
