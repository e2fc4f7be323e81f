"""Compiles `jspec.decode` and `jspec.step` ahead of time for a TPU v5e, on a machine that has none.

Needs the extra `tpu` (libtpu). Fails if a program does not compile, or if it holds the cache twice.
"""

import os

# The programs are for the topology below; whatever runs while they are traced runs here.
os.environ["JAX_PLATFORMS"] = "cpu"
# libtpu would ask the cloud's metadata server what machine this is; it is told instead.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TPU_ACCELERATOR_TYPE"] = "v5litepod-4"
os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"

import sys
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jspec
from jspec.models import Llama, LlamaConfig

# Few layers compile in seconds. A layer's keys are larger than the 128 MiB of vector memory of a
# core, where XLA would keep smaller ones, and count differently.
MODEL = Llama(
    LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1024,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        head_dim=128,
        context=65536,
    ),
    dtype=jnp.bfloat16,
    param_dtype=jnp.bfloat16,
)
PROMPT = 128
LIMIT = 65536 - PROMPT
SLACK = 16 << 20  # logits, the tree's keys and values, the drafter's matrix
RECYCLING = jspec.TokenRecycling(MODEL.vocab_size)
DRAFT = MODEL.clone(config=replace(MODEL.config, num_layers=1, num_heads=1, num_kv_heads=1))
TREE = jspec.CoupledTree(DRAFT, num_speculative_tokens=16)


def main() -> int:
    devices = topologies.get_topology_desc("v5e:2x2", "tpu").devices
    one = Mesh(devices[:1], ("data",), axis_types=(AxisType.Auto,))
    four = Mesh(devices[:4], ("data",), axis_types=(AxisType.Auto,))
    fits = [
        decode(one, 4, jspec.Autoregressive(), sampled=False),
        decode(one, 4, RECYCLING, sampled=False),
        decode(four, 16, RECYCLING, sampled=True),
        decode(one, 4, TREE, sampled=True, draft=DRAFT),
        step(one, 4, RECYCLING),
    ]
    if not all(fits):
        print("something is kept twice, or copied to another layout", file=sys.stderr)
    return 0 if all(fits) else 1


def decode(
    mesh: Mesh,
    batch: int,
    drafter: jspec.Drafter,
    sampled: bool,
    draft: Llama | None = None,
) -> bool:
    """The whole generation as one program: it makes the cache, so it holds one."""
    rows, prompt, lengths = _prompts(mesh, batch)
    sampling, key = None, None
    if sampled:
        sampling = jspec.Sampling(
            temperature=_shaped((batch,), jnp.float32, rows),
            top_k=_shaped((batch,), jnp.int32, rows),
            top_p=_shaped((batch,), jnp.float32, rows),
            min_p=_shaped((batch,), jnp.float32, rows),
        )
        key = _placed(jax.eval_shape(lambda: jax.random.key(0)), mesh)

    def program(params, draft_params, prompt, lengths, sampling, key):
        return jspec.decode(
            MODEL,
            params,
            prompt,
            lengths,
            drafter=drafter,
            drafter_params=draft_params,
            max_new_tokens=LIMIT,
            sampling=sampling,
            key=key,
            eos=2,
        )

    weights = _weights(mesh), None if draft is None else _weights(mesh, draft)
    lowered = jax.jit(program).lower(*weights, prompt, lengths, sampling, key)
    kind = "sampled" if sampled else "greedy"
    return _fits(f"decode, {type(drafter).__name__}, {kind}", lowered, mesh, batch, caches=1)


def step(mesh: Mesh, batch: int, drafter: jspec.Drafter) -> bool:
    """One round, as streaming and serving run it: the cache is its donated argument."""
    _, prompt, lengths = _prompts(mesh, batch)
    weights = _weights(mesh)

    def start(params, prompt, lengths):
        return jspec.prefill(
            MODEL, params, prompt, lengths, drafter=drafter, max_new_tokens=LIMIT, eos=2
        )

    def program(params, state):
        return jspec.step(MODEL, params, state, drafter=drafter)

    state = _placed(jax.eval_shape(start, weights, prompt, lengths), mesh)
    lowered = jax.jit(program, donate_argnums=1).lower(weights, state)
    return _fits(f"step, {type(drafter).__name__}, greedy", lowered, mesh, batch, caches=0)


def _fits(name: str, lowered: jax.stages.Lowered, mesh: Mesh, batch: int, caches: int) -> bool:
    """Compiles, prints what a device holds besides the arguments; False if that is too much."""
    memory = lowered.compile().memory_analysis()
    # Not temp_size_in_bytes: on TPU that counts a buffer again where a loop passes it on.
    held = memory.peak_memory_in_bytes - memory.argument_size_in_bytes
    shapes = jax.eval_shape(partial(MODEL.init_memory, batch, PROMPT + LIMIT))
    cache = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)) / mesh.size
    bound = (caches + 0.25) * cache + SLACK
    print(
        f"{name}, batch {batch} on {mesh.size} x {mesh.devices.flat[0].device_kind}: "
        f"{held / 2**20:.0f} MiB per device besides the arguments of "
        f"{memory.argument_size_in_bytes / 2**20:.0f} MiB; the cache is {cache / 2**20:.0f} MiB, "
        f"the bound {bound / 2**20:.0f} MiB",
        flush=True,
    )
    return held <= bound


def _shaped(shape, dtype, sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _placed(shapes, mesh: Mesh):
    """The same shapes on every device."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: _shaped(leaf.shape, leaf.dtype, everywhere), shapes)


def _weights(mesh: Mesh, model: Llama = MODEL):
    nodes = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    return _placed(jax.eval_shape(model.init, jax.random.key(0), *nodes), mesh)


def _prompts(mesh: Mesh, batch: int):
    rows = NamedSharding(mesh, PartitionSpec("data"))
    return (
        rows,
        _shaped((batch, PROMPT), jnp.int32, rows),
        _shaped((batch,), jnp.int32, rows),
    )


if __name__ == "__main__":
    sys.exit(main())
