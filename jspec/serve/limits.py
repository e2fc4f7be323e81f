"""Limits on a request before it has a row."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLimits:
    """The options of `jspec serve` by these names, with dashes."""

    forms: int = 4
    form_seconds: int = 5
    form_megabytes: int = 160
    form_kilobytes: int = 256
    form_queue: int = 64
