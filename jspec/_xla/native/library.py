"""The library of kernels: loaded once, and registered with XLA."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jax

SWITCH = "JSPEC_NATIVE"
"""The environment variable that switches kernels off (0) or names an instruction set."""

TARGETS = (
    *("jspec_product", "jspec_block_product", "jspec_rounded_product", "jspec_attend"),
    *("jspec_recur", "jspec_replay", "jspec_convolve", "jspec_top"),
)
"""The names under which XLA knows them."""

FILE = Path(__file__).parent / "src" / "libjspec.so"

SETS = {"amx": "AMX", "avx512": "AVX-512", "avx2": "AVX2", "neon": "NEON"}
"""Instruction sets that there are kernels for, the fastest of a processor first."""

_disabled = False
_registered: set[str] = set()


def instruction_set() -> str | None:
    """Returns the kernels' instructions; None: there are no kernels, see `missing`."""
    return None if _disabled else _load()[0]


def missing() -> str | None:
    """Returns why there are no kernels; None: there are."""
    return "they are disabled" if _disabled else _load()[1]


def describe() -> str:
    """Returns which kernels run on a CPU, in a few words."""
    instructions = instruction_set()
    return f"{instructions} kernels" if instructions else f"no kernels: {missing()}"


def has(target: str) -> bool:
    """Returns whether there is this kernel here: a library of older sources may lack it."""
    return instruction_set() is not None and target in _registered


@contextmanager
def disable() -> Iterator[None]:
    """Yields a context in which XLA computes in place of the kernels: to compare with."""
    global _disabled
    before, _disabled = _disabled, True
    jax.clear_caches()
    try:
        yield
    finally:
        _disabled = before
        jax.clear_caches()


@cache
def _load() -> tuple[str | None, str | None]:
    """Returns the instruction set, and why there is none."""
    choice = os.environ.get(SWITCH, "")
    if choice == "0":
        return None, f"{SWITCH}=0 switches them off"
    if choice and choice not in SETS:
        return None, f"{SWITCH} is {choice[:40]!r}; it may be 0 or one of {', '.join(SETS)}"
    if not FILE.exists():
        return None, "jspec was installed without a C++ compiler; install one, then jspec again"
    try:
        library = ctypes.cdll.LoadLibrary(str(FILE))
        names = [name for name in SETS if choice in ("", name)]
        match = next((name for name in names if library.jspec_choose(name.encode())), None)
        if match is None:
            instructions = SETS.get(choice, "AVX-512, AVX2 with FMA, NEON")
            return None, f"the processor has none of these instructions: {instructions}"
        for name in TARGETS:
            handler: Any = getattr(library, name, None)
            if handler is None:
                continue
            _registered.add(name)
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    except Exception as error:  # a loader fails in ways of its own; XLA computes then
        reason = (str(error).splitlines() or [""])[0]
        return None, f"the library {FILE.name} does not load: {reason:.200}"
    return SETS[match], None


def on_one_device(x: Any) -> bool:
    """Returns whether an array is on one device, or is one device's part."""
    mesh = jax.typeof(x).sharding.mesh
    return mesh.empty or mesh.size == 1 or not (mesh.auto_axes or mesh.explicit_axes)
