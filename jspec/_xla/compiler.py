"""Known wrong results of XLA's compiler for CPUs, and what avoids them.

Since jaxlib 0.10.2 XLA gives fused reductions to a library, YNNPACK, and with them the product that
is reduced. Some of these come out wrong, without a word, and so does a shift in place:
docs/exactness.md lists them.
"""

from collections.abc import Callable, MutableMapping
from functools import cache
from re import findall, fullmatch

import jaxlib.version

OPTION = "--xla_cpu_experimental_ynn_fusion_type"
"""The option of XLA that says what YNNPACK computes."""

SAFE = f"{OPTION}=-reduce"
"""Everything but reductions: all programs that are known to be wrong are right with it."""

RELEASE = tuple(map(int, findall(r"\d+", jaxlib.version.__version__)[:3]))
"""Of jaxlib."""

_KNOWN = (0, 10, 2), (0, 12, 0)
"""The first and the last release of jaxlib with which the option was tried. XLA ends a
process over an option that it does not know."""


def set_xla_flags(environment: MutableMapping[str, str]) -> None:
    """Makes XLA for CPUs avoid results that are known to be wrong, if this jaxlib has the option.

    Call it before JAX starts; the command line does.

    Args:
        environment: `os.environ`, whose XLA_FLAGS gets the option; a choice that it has stays, and
            so does one that names a file.

    Example:
        >>> import os, jspec
        >>> jspec.set_xla_flags(os.environ)
    """
    flags = environment.get("XLA_FLAGS", "")
    # 0.12.0.1 is a release of 0.12.0; what is built between releases has letters behind.
    release = fullmatch(r"(\d+)\.(\d+)\.(\d+)(\.\d+)?", jaxlib.version.__version__)
    is_affected = release and _KNOWN[0] <= tuple(map(int, release.groups()[:3])) <= _KNOWN[1]
    if is_affected and OPTION not in flags and flags.strip()[:1] in ("", "-"):
        environment["XLA_FLAGS"] = f"{flags} {SAFE}".lstrip()


@cache
def wrong() -> str | None:
    """Returns a warning about wrong results of XLA in this process, with the cure, or None.

    Where JAX computes on a CPU three small programs are compiled for it, a third of a second.
    """
    import jax

    if jax.default_backend() != "cpu":
        return None
    cures: dict[str, list[str]] = {}
    for name, (is_right, cure) in _PROGRAMS.items():
        if not is_right():
            cures.setdefault(cure, []).append(name)
    if not cures:
        return None
    faults = "; ".join(f"{' and '.join(names)}: {cure}" for cure, names in cures.items())
    return f"XLA of jaxlib {jaxlib.version.__version__} computes wrongly on a CPU: {faults}"


def _sums_of_squares() -> bool:
    """Returns whether the last of 32,769 rows is right, see jax-ml/jax issue 39103."""
    import jax
    import jax.numpy as jnp

    rows = jnp.zeros((32_769, 3)).at[-1, 0].set(32_768)
    sums = jax.jit(lambda rows: jnp.square(jnp.eye(3) @ rows.T).sum(0))(rows)
    return float(sums[-1]) == 32_768**2


def _products_with_one_number() -> bool:
    """Returns whether products with matrices of one number are summed right."""
    import jax
    import jax.numpy as jnp

    ones = jnp.ones((5, 64, 64))
    sums = jax.jit(lambda ones: ((ones @ jnp.full_like(ones, 0.5)) * ones).sum((1, 2)))(ones)
    return sums.tolist() == [0.5 * 64**3] * 5


def _shifts() -> bool:
    """Returns whether a right shift in place is right behind a reshape, see openxla/xla 49176."""
    import jax
    import jax.numpy as jnp

    def shift(x):
        x = 2 * x
        return x.at[1:].set(x[:-1])[None]

    return jax.jit(shift)(jnp.arange(1, 129)).tolist() == [[2, *range(2, 256, 2)]]


_OPTION = f"set XLA_FLAGS={SAFE} before JAX starts"
_PROGRAMS: dict[str, tuple[Callable[[], bool], str]] = {
    "a sum of squares of a product": (_sums_of_squares, _OPTION),
    "a reduced product with matrices of one number": (_products_with_one_number, _OPTION),
    "a right shift by x.at[n:].set(x[:-n]), reshaped": (
        _shifts,
        "write it with jnp.concatenate in your own model and drafter; jspec has none",
    ),
}
