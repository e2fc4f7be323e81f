#!/usr/bin/env bash
# JAX 0.10.2: an array that jnp.full fills with an enum member is weakly typed, dtype or not.
#
# `jnp.full(shape, 2, jnp.int32)` is int32 for good: the dtype was named. `jnp.full(shape, Status.DONE,
# jnp.int32)`, of an IntEnum with that value, has the same dtype and prints the same, and is weakly typed,
# and so with full_like. jnp.asarray(Status.DONE, jnp.int32) is not. A jitted function takes the two for
# different types: it is traced and compiled once more, in a process that had compiled it for all it will
# be given, and its sums with int8 have another dtype. int(Status.DONE) is free of it. JAX 0.12.0.1 has it too.
#
# Fails if that changes. Needs Python 3.11 or newer and a package index.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PY'
from enum import IntEnum

import jax
import jax.numpy as jnp


class Status(IntEnum):
    DONE = 2


print("jax", jax.__version__)
zeros = jnp.zeros(3, jnp.int32)
makers = {
    "full": lambda value: jnp.full(3, value, jnp.int32),
    "full_like": lambda value: jnp.full_like(zeros, value, dtype=jnp.int32),
    "asarray": lambda value: jnp.asarray(value, jnp.int32),
}
weak = {
    name: [make(value).weak_type for value in (2, Status.DONE, int(Status.DONE))]
    for name, make in makers.items()
}
for name, kinds in weak.items():
    print(f"{name:10} weakly typed by 2, Status.DONE, int(Status.DONE): {kinds}")

double = jax.jit(lambda x: 2 * x)
programs = []
for value in (2, Status.DONE):
    double(jnp.full(3, value, jnp.int32))
    programs.append(double._cache_size())
print("programs of one function after an int, and after the enum:", programs)
narrow = jnp.ones(3, jnp.int8)
sums = [(narrow + jnp.full(3, value, jnp.int32)).dtype.name for value in (2, Status.DONE)]
print("dtype of a sum with int8, by an int and by the enum:", sums)
assert weak == {
    "full": [False, True, False], "full_like": [False, True, False], "asarray": [False] * 3,
}
assert programs == [1, 2] and sums == ["int32", "int8"]
PY
