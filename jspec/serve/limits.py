"""Limits on a request before it has a row, and on a connection before its request."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLimits:
    """The options of `jspec serve` by these names, with dashes.

    Args:
        forms: grammars and stop strings made at a time, in a process each; half per client.
        form_seconds: a request is read, and its form made, in so many seconds each.
        form_megabytes: memory that a form may take while it is made.
        form_kilobytes: the text of a form.
        form_queue: forms that wait to be made; of one client half as many.
        header_seconds: in which the head of a request has to come.
        connections: of one address.
    """

    forms: int = 4
    form_seconds: int = 5
    form_megabytes: int = 160
    form_kilobytes: int = 256
    form_queue: int = 64
    header_seconds: int = 20
    connections: int = 256
