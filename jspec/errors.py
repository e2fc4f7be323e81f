"""What jspec says of input that it cannot take."""


class InputError(ValueError):
    """Input that jspec refuses, in one sentence: the value, the bound and the fix.

    Everything that jspec itself refuses is one of these; any other exception is a bug, of jspec or
    of what it was given. Nothing was compiled, and nothing was lost.
    """
