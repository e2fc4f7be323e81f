#!/usr/bin/env bash
# jaxlib 0.10.2 on a CPU: a small write to a bfloat16 array rewrites the whole array.
#
# A loop carries an array [3, 4096, 64] and writes 16 of its 4,096 slots in each step. In float32, uint16
# and float16 XLA writes in place, in microseconds. In bfloat16 it converts the whole array to float32,
# writes, and converts all of it back, in every step: a thousand times as long, and ever longer with the
# array. Key-value caches of language models are such arrays. The same numbers held as uint16, by
# jax.lax.bitcast_convert_type, are free of it, and jaxlib 0.11.2 is too.
#
# Fails if that changes. Needs Python 3.11 or newer and a package index.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PY'
import re
import time

import jax
import jax.numpy as jnp

SLOTS = 4096
print("jax", jax.__version__, "jaxlib", jax.lib.__version__)


def program(dtype):
    def write(step, array):
        new = jnp.ones((3, 16, 64), dtype) * (step % 7).astype(dtype)
        return array.at[:, step % (SLOTS - 16) + jnp.arange(16)].set(new, mode="drop")

    loop = jax.jit(lambda array: jax.lax.fori_loop(0, 20, write, array), donate_argnums=0)
    return loop.lower(jnp.zeros((3, SLOTS, 64), dtype)).compile()


found = {}
for dtype in (jnp.float32, jnp.float16, jnp.uint16, jnp.bfloat16):
    name, compiled = jnp.dtype(dtype).name, program(dtype)
    whole = len(re.findall(r"= f32\[3,4096,64\]\S* convert", compiled.as_text()))
    array = compiled(jnp.zeros((3, SLOTS, 64), dtype))
    begin = time.perf_counter()
    compiled(array).block_until_ready()
    microseconds = (time.perf_counter() - begin) / 20 * 1e6
    found[name] = whole
    print(f"{name:9} {microseconds:8.1f} us a write, {whole} conversions of the whole array in the loop")

assert found["bfloat16"] > 0, "bfloat16 is written in place now"
assert not any(count for name, count in found.items() if name != "bfloat16"), found
PY
