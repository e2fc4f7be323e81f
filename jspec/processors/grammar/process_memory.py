"""The memory of a process that makes automata, bounded by Linux's `RLIMIT_DATA`.

Elsewhere nothing bounds it but the bounds of the automata.
"""

from contextlib import suppress


def measure() -> int:
    """Returns bytes that this process may write to."""
    import resource

    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * resource.getpagesize()


def bound(size: int) -> None:
    """Lets this process take so many bytes more, and no others: it then has MemoryError."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = measure() + size
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def find_room(max_bytes: int) -> int:
    """Returns the bytes that this process may still take, so many at most."""
    with suppress(ImportError, OSError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        if limit != resource.RLIM_INFINITY:
            return max(0, min(max_bytes, limit - measure()))
    return max_bytes
