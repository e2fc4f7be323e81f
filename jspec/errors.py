"""The errors of jspec: input that it refuses, and runs that cannot go on."""


class InputError(ValueError):
    """Input that jspec refuses, in one sentence: the value, the bound and the fix.

    Everything that jspec itself refuses is one of these; any other exception is a bug, of jspec or
    of what it was given. Nothing was compiled, and nothing was lost.

    Example:
        >>> import jspec
        >>> jspec.PromptLookup(num_speculative_tokens=0)
        Traceback (most recent call last):
        jspec.errors.InputError: num_speculative_tokens is 0; pass an integer of at least 1
    """


class RecompileError(RuntimeError):
    """A program would have been compiled inside `jspec.no_recompile()`.

    The message names the function, the shapes of its last arguments, and the rows and slots of the
    call. Nothing was compiled.
    """


class RunStopped(RuntimeError):
    """A long run cannot go on, for want of disk space for instance.

    The message says what is whole and how the run is continued.
    """
