"""Shapes of models by the memory of the device, with weights and states made on the device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jspec
from benchmarks.harness import SHARED
from jspec.methods import BUNDLED, BUNDLED_DRAFT
from jspec.models import Llama, LlamaConfig
from jspec.protocols import CausalLM
from jspec.types import PyTree, State

ALL_METHODS = (
    "auto",
    "token_recycling+suffix",
    "token_recycling",
    "eagle",
    "lyanna+suffix",
    "eagle2",
    "medusa",
    "lyanna",
    "dynamic_token_recycling",
    "suffix",
    "prompt_lookup",
)
"""Methods on real text, in the order of their weight: `auto`, then what it may be made of."""

PRECISIONS = (("float32", "highest"), ("bfloat16", "default"), ("float32", "default"))
"""Pairs (dtype, `jax_default_matmul_precision`). By default a GPU multiplies float32 as TF32."""

PROMPT = 16
"""Tokens of the prompt that states are shaped for; its forward never runs."""


@dataclass(frozen=True)
class Scale:
    """A shape and all sizes that are measured with it. Sizes come in the order of their weight."""

    name: str
    config: LlamaConfig
    dtype: str
    batches: tuple[int, ...]
    widths: tuple[int, ...]
    """Tokens of a forward, N."""
    past: int
    """Positions of the cache that are live."""
    capacity: int
    nodes: int
    """Drafted nodes of the trees whose acceptance is forced."""
    num_rounds: int
    """Rounds of a sample."""
    repeats: int
    round_batches: tuple[int, ...]
    prompts: int
    """Real texts a model is asked to go on with."""
    new_tokens: int
    copied_bytes: int
    models: tuple[str, ...] = (BUNDLED, str(SHARED / "models" / "SmolLM2-135M-Instruct"))
    """Models that go on with real text: bundled names, folders or hub ids."""
    round_methods: tuple[str, ...] = ("token_recycling", "auto", "suffix")
    """Methods whose rounds are timed; they need no more of a target than its shape."""
    methods: tuple[str, ...] = ALL_METHODS
    """Methods on real text; those that the library or a model does not have are left out."""
    parity_methods: tuple[str, ...] = ("auto", "token_recycling+suffix", "eagle")
    precisions: tuple[tuple[str, str], ...] = PRECISIONS
    """In which drafted tokens are compared with plain ones."""
    needs: int = 0
    """Bytes of memory that the device has to offer."""

    @cached_property
    def model(self) -> Llama:
        dtype = getattr(jnp, self.dtype)
        return Llama(self.config, dtype=dtype, param_dtype=dtype)

    @cached_property
    def params(self) -> PyTree:
        """Random weights, made on the device."""
        return random_weights(self.model)


ON_ACCELERATORS: dict[str, Any] = dict(
    dtype="bfloat16",
    batches=(1, 16, 2, 8, 32),
    widths=(1, 64, 2, 16, 81, 128, 256, 512, 768, 4, 8, 32),
    past=512,
    capacity=1024,
    nodes=63,
    num_rounds=32,
    repeats=5,
    round_batches=(1, 8, 32),
    prompts=10,
    new_tokens=128,
    copied_bytes=2 << 30,
)
SCALES = {
    scale.name: scale
    for scale in (
        # Llama-2-7B.
        Scale(
            "7B",
            LlamaConfig(32000, 4096, 11008, 32, 32, 32, 128, 4096),
            needs=40 << 30,
            **ON_ACCELERATORS,
        ),
        # Llama-3.2-3B.
        Scale(
            "3B",
            LlamaConfig(128256, 3072, 8192, 28, 24, 8, 128, 4096, tied=True),
            needs=14 << 30,
            **ON_ACCELERATORS,
        ),
        # TinyLlama-1.1B.
        Scale(
            "1B",
            LlamaConfig(32000, 2048, 5632, 22, 32, 4, 64, 2048),
            needs=5 << 30,
            **ON_ACCELERATORS,
        ),
        Scale(
            "9M",
            LlamaConfig(8192, 256, 704, 6, 4, 4, 64, 1024),
            dtype="float32",
            batches=(1, 4),
            widths=(1, 8, 32, 4, 16),
            past=64,
            capacity=192,
            nodes=7,
            num_rounds=16,
            repeats=3,
            round_batches=(1, 4),
            prompts=2,
            new_tokens=48,
            copied_bytes=64 << 20,
            methods=ALL_METHODS[:4],
            # A CPU multiplies float32 as such, whatever is asked for.
            precisions=PRECISIONS[:2],
        ),
        # For tests.
        Scale(
            "tiny",
            LlamaConfig(64, 16, 24, 2, 2, 1, 8, 64),
            dtype="float32",
            batches=(1, 2),
            widths=(1, 4),
            past=8,
            capacity=64,
            nodes=7,
            num_rounds=4,
            repeats=1,
            round_batches=(1,),
            prompts=1,
            new_tokens=8,
            copied_bytes=1 << 16,
            models=(BUNDLED_DRAFT,),
            round_methods=("prompt_lookup",),
            methods=("prompt_lookup", "eagle"),
            parity_methods=("prompt_lookup",),
            precisions=PRECISIONS[:1],
        ),
    )
}


def fitting(memory: int | None) -> Scale:
    """Returns the largest scale for a device of so much memory; None is a CPU."""
    return next(
        scale for scale in SCALES.values() if scale.needs <= (0 if memory is None else memory)
    )


def random_weights(model: Llama) -> PyTree:
    """Makes weights as at the start of training, leaf by leaf: few programs, and no host copy."""
    tokens, mask = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens, mask)
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    return structure.unflatten(
        _normal(key, leaf.shape, leaf.dtype) if len(leaf.shape) > 1
        else jnp.ones(leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    )  # fmt: skip


@partial(jax.jit, static_argnames=("shape", "dtype"))
def _normal(key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
    # In float32 first: normal numbers of 8 bits can be infinite.
    return (0.02 * jax.random.normal(key, shape, jnp.float32)).astype(dtype)


def random_cache(model: CausalLM, batch: int, past: int, capacity: int) -> jspec.KVCache:
    """Makes a cache of random keys and values, `past` of its positions live in every row."""
    empty = jax.eval_shape(partial(model.init_memory, batch, capacity))
    leaves, structure = jax.tree.flatten((empty.keys, empty.values))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    filled = [_normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    held = structure.unflatten(filled)
    return jspec.KVCache(*held, lengths=jnp.full(batch, past, jnp.int32))


def random_state(
    model: CausalLM, params: PyTree, drafting: dict[str, Any], batch: int, past: int, capacity: int
) -> State:  # fmt: skip
    """Makes a state in the middle of a generation, as `jspec.prefill` shapes it, without a forward.

    The drafter knows nothing of the text before; its rounds cost what they always cost.
    """
    prompt = np.zeros((batch, PROMPT), np.int32)

    drafter, policy = drafting["drafter"], drafting["policy"]

    def begin(params: PyTree, drafter_params: PyTree, policy_params: PyTree) -> State:
        return jspec.prefill(
            model, params, prompt, drafter=drafter, drafter_params=drafter_params, policy=policy,
            policy_params=policy_params, max_new_tokens=capacity - PROMPT,
        )  # fmt: skip

    shapes = jax.eval_shape(begin, params, drafting["drafter_params"], drafting["policy_params"])
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        replace(shapes, memory=None, drafter_state=None),
    )
    return replace(
        zeros,
        memory=random_cache(model, batch, past, capacity),
        positions=jnp.full(batch, past, jnp.int32),
        capacity=capacity,
        # Its own arrays: the state is donated, and leaves may be shared.
        drafter_state=jax.tree.map(jnp.array, drafter.init(batch, capacity, None)),
        policy_state=jax.tree.map(jnp.array, policy.init(batch, capacity, None)),
        request=replace(
            zeros.request,
            limits=jnp.full(batch, capacity, jnp.int32),
            eos=jnp.full_like(zeros.request.eos, -1),
        ),
    )
