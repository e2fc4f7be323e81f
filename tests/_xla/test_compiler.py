"""Mistakes of XLA, which an option avoids, and what a device says of itself."""

import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jaxlib.version
import pytest
from compiling import environment, shifted_in_place

import jspec
from jspec._xla import compiler
from jspec.costs import devices

RUN = """
import os, sys
from jspec._xla import compiler
if sys.argv[1] == "avoid":
    compiler.set_xla_flags(os.environ)
print(compiler.wrong())
"""


def test_the_option_is_set_where_it_is_known_and_not_set_yet(monkeypatch):
    cases = [
        ("0.10.2", None, compiler.SAFE),
        ("0.12.0.1", "--xla_dump_to=a", f"--xla_dump_to=a {compiler.SAFE}"),
        ("0.12.0", f"{compiler.OPTION}=dot", f"{compiler.OPTION}=dot"),
        # XLA ends a process over an option that it does not know.
        *((other, None, None) for other in ("0.10.1", "0.12.1", "0.12.0rc1", "0.11.0.dev20260101")),
        # What does not begin as an option is the name of a file, which XLA has to find.
        ("0.10.2", "/flags", "/flags"),
    ]
    for version, given, wanted in cases:
        monkeypatch.setattr(jaxlib.version, "__version__", version)
        variables = {} if given is None else {"XLA_FLAGS": given}
        compiler.set_xla_flags(variables)
        assert variables.get("XLA_FLAGS") == wanted


def said(how):
    ran = subprocess.run(
        [sys.executable, "-c", RUN, how], env=environment(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return ran.stdout.strip()


@pytest.mark.slow
def test_with_the_option_all_is_right():
    """But for the shift, which no option mends."""
    assert "XLA_FLAGS" not in said("avoid") and "a right shift" in said("avoid")


@pytest.mark.slow
def test_without_it_what_is_wrong_is_a_sentence_with_the_cure():
    """The negative control. A version of JAX in which all is right fails here: widen the list."""
    found = said("nothing")
    assert found.startswith(f"XLA of jaxlib {jaxlib.version.__version__} computes wrongly")
    assert "a reduced product with matrices of one number" in found
    assert ("a sum of squares" in found) == (jaxlib.version.__version__ == "0.10.2")
    assert f": set XLA_FLAGS={compiler.SAFE} before JAX starts; a right shift" in found


def test_a_shift_in_place_is_found_in_a_compiled_program():
    """The control of what `shifted_in_place` looks for in jspec's own programs."""

    def program(shift):
        def run(x):
            x = 2 * x
            return (shift(x)[None],)

        return jax.jit(run).lower(jnp.arange(1.0, 129)).compile()

    wrong, right = program(lambda x: x.at[1:].set(x[:-1])), program(lambda x: x.at[1:].set(7))
    assert shifted_in_place(wrong.as_text()) and not shifted_in_place(right.as_text())


def test_memory_reserved_by_jax_is_not_reduced_twice(monkeypatch):
    """`bytes_limit` is the part of its memory that JAX took."""
    limit = 60_000_000_123
    gpu = SimpleNamespace(
        platform="gpu", device_kind="NVIDIA H100 80GB HBM3",
        memory_stats=lambda: {"bytes_limit": limit},
    )  # fmt: skip
    for fraction in ("", "0.9", "no number", "7"):
        monkeypatch.setenv(devices._GPU_FRACTION, fraction)
        found = devices.here(gpu)
        assert found.name == "H100" and devices.usable(found) == pytest.approx(limit, abs=1)
    tpu = SimpleNamespace(platform="tpu", device_kind="TPU v5", memory_stats=lambda: None)
    assert devices.usable(devices.here(tpu)) == devices.find("v5p").memory


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(jspec.InputError, match="device 'X1' is unknown; take one of TPU v5e"):
        devices.find("X1")
