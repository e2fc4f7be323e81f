"""Weights in blocks as llama.cpp's GGUF files hold them: Q8_0, Q4_0, Q4_1, Q4_K and Q6_K.

A block is 32 weights in 8 or 4 bits with a scale in float16, in Q4_1 an offset too. In Q4_K and
Q6_K it is 256 weights in 4 or 6 bits: parts of 32 or 16 have scales of their own in 6 or 8 bits,
in Q4_K offsets too. The bytes stay as they are in the file, and are dequantised where they are
multiplied. Scales have so few bits that only the sum with an offset is rounded: the model is the
one in float32 that the file stands for. A matrix is an array of bytes, [O, I / length * size].

Weights are rounded to blocks of 32, embeddings and head then to those of Q8_0. Blocks of 256 come
from files alone, where some matrices are in other formats: each array's size says which it has.

"q4_1a8" and its like are the same weights with activations that are rounded to 8 bits before each
product, 32 by 32, as in llama.cpp: see `jspec.models.eight_bits`.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Int8, UInt8

from jspec._validate.errors import InputError
from jspec._xla import mesh_axes, native

SIZES = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q4_k": 144, "q6_k": 210}
"""The bytes of a block, by the name of the format."""

FROM_FILES = {"q4_k": 256, "q6_k": 256}
"""Formats that nothing is rounded to, and their weights of a block; of others these are 32."""

ROUNDED_STATES = {f"{kind}a8": kind for kind in SIZES}
"""Formats whose activations are rounded too, and the formats of their weights."""

FORMATS = {kind: kind for kind in SIZES} | ROUNDED_STATES
"""All formats, and the formats of their weights."""

TABLES = "q8_0"
"""The format of embeddings and head."""

LENGTH = 32
"""Weights that are multiplied with one sum of the activations; they have one output."""


def fit(shape: tuple[int, ...], kind: str) -> bool:
    """Returns whether weights of this shape fill blocks; others stay as they are."""
    return shape[-1] % FROM_FILES.get(kind, LENGTH) == 0


def kind_of(row_bytes: int, inputs: int, default: str = "q4_k") -> str | None:
    """Returns the format of rows of so many bytes, of which Q4_0 and Q4_K have as many."""
    fitting = [
        kind
        for kind in SIZES
        if fit((inputs,), kind) and packed_shape((inputs,), kind) == (row_bytes,)
    ]
    return default if default in fitting else next(reversed(fitting), None)


def packed_shape(shape: tuple[int, ...], kind: str) -> tuple[int, ...]:
    """Returns the shape of the bytes."""
    return (*shape[:-1], shape[-1] // FROM_FILES.get(kind, LENGTH) * SIZES[kind])


def scales(packed: UInt8[np.ndarray, "*X O B"], kind: str) -> Float[np.ndarray, "*X O C N"]:
    """Returns the float16 numbers of blocks, which alone may be infinite or NaN."""
    blocks = packed.reshape(*packed.shape[:-1], -1, SIZES[kind])
    halves = [blocks[..., offset : offset + 2] for offset in _HALVES[kind]]
    return np.concatenate(halves, -1).view(np.float16)


def pack(weights: Float[np.ndarray, "*X O I"], kind: str) -> UInt8[np.ndarray, "*X O B"]:
    """Returns weights rounded to blocks, as llama.cpp rounds them."""
    from jspec.models.gguf.file import library

    if kind in FROM_FILES:
        rounded_to = ", ".join(name for name in SIZES if name not in FROM_FILES)
        raise InputError(
            f"no weights are rounded to {kind}; load a GGUF file that holds them, or use one of "
            f"{rounded_to}"
        )
    gguf = library()
    flat = np.ascontiguousarray(weights, np.float32).reshape(-1, weights.shape[-1])
    blocks = gguf.quants.quantize(flat, gguf.GGMLQuantizationType[kind.upper()])
    return blocks.reshape(packed_shape(weights.shape, kind))


def dequantise(
    packed: UInt8[Array, "*X B"], kind: str, dtype: DTypeLike = jnp.float32
) -> Float[Array, "*X I"]:
    """Returns the weights that the bytes stand for."""
    steps, scale, added = parts(packed, kind)
    values = steps.astype(jnp.float32) * scale
    values = values if added is None else values + added
    return values.reshape(*packed.shape[:-1], -1).astype(dtype)


def parts(
    packed: UInt8[Array, "*X B"], kind: str
) -> tuple[Int[Array, "*X C 32"], Float[Array, "*X C 1"], Float[Array, "*X C 1"] | None]:
    """Returns the whole numbers of 32 weights, what multiplies them and what is added to them."""
    blocks = packed.reshape(*packed.shape[:-1], -1, SIZES[kind])
    if kind in FROM_FILES:
        by_block = (_q4_k if kind == "q4_k" else _q6_k)(blocks)
        return jax.tree.map(
            lambda part: part.reshape(*packed.shape[:-1], -1, part.shape[-1]), by_block
        )
    scale = _half(blocks[..., :2])
    if kind == "q8_0":
        return jax.lax.bitcast_convert_type(blocks[..., 2:], jnp.int8), scale, None
    both = blocks[..., -16:]
    steps = jnp.concatenate([both & 15, both >> 4], -1).astype(jnp.int8)
    if kind == "q4_0":
        return steps - 8, scale, None
    return steps, scale, _half(blocks[..., 2:4])


def _q4_k(
    blocks: UInt8[Array, "*X 144"],
) -> tuple[Int8[Array, "*X 8 32"], Float[Array, "*X 8 1"], Float[Array, "*X 8 1"]]:
    # Twelve bytes: the lower six bits of the first eight are the first four scales and offsets;
    # the last four scales and offsets have their lower four bits in the last four bytes.
    first, second, low = jnp.split(blocks[..., 4:16], 3, -1)
    scales = jnp.concatenate([first & 63, low & 15 | first >> 6 << 4], -1)
    offsets = jnp.concatenate([second & 63, low >> 4 | second >> 6 << 4], -1)
    both = blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 32)
    steps = jnp.stack([both & 15, both >> 4], -2).astype(jnp.int8)
    scale, offset = (
        _half(blocks[..., place : place + 2])[..., None] * of[..., None].astype(jnp.float32)
        for place, of in ((0, scales), (2, offsets))
    )
    return steps.reshape(*blocks.shape[:-1], 8, 32), scale, -offset


def _q6_k(
    blocks: UInt8[Array, "*X 210"],
) -> tuple[Int[Array, "*X 8 32"], Float[Array, "*X 8 1"], None]:
    lower, upper = (
        blocks[..., start:end].reshape(*blocks.shape[:-1], 2, -1)
        for start, end in ((0, 128), (128, 192))
    )
    fours = jnp.concatenate([lower & 15, lower >> 4], -1)
    twos = jnp.concatenate([upper >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    steps = (fours | twos << 4).astype(jnp.int16) - 32
    # Scales of 16 weights are whole numbers too: of their products with steps sums are exact.
    scales = jax.lax.bitcast_convert_type(blocks[..., 192:208], jnp.int8).astype(jnp.int16)
    steps = steps.reshape(*scales.shape, 16) * scales[..., None]
    scale = _half(blocks[..., 208:])[..., None]
    steps = steps.reshape(*blocks.shape[:-1], 8, 32)
    return steps, jnp.broadcast_to(scale, (*steps.shape[:-1], 1)), None


def _half(two: UInt8[Array, "*X 2"]) -> Float[Array, "*X 1"]:
    """Returns two bytes as float16, in float32."""
    return jax.lax.bitcast_convert_type(two, jnp.float16)[..., None].astype(jnp.float32)


def table(array: Any, width: int) -> Any:
    """Returns embeddings or a head, whether or not they are in blocks, as numbers."""
    kind = kind_of(array.shape[-1], width) if array.dtype == jnp.uint8 else None
    return array if kind is None else dequantise(array, kind)


@struct.dataclass
class Blocks:
    """A matrix in blocks, or an array of matrices."""

    packed: UInt8[Array, "*X O B"]
    kind: str = struct.field(pytree_node=False)
    dtype: Any = struct.field(pytree_node=False)
    """The dtype that they are dequantised to."""
    rounds_states: bool = struct.field(pytree_node=False, default=False)
    """True if what they are multiplied with is rounded to 8 bits."""

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: Any) -> Float[Array, "..."]:
        """Returns some of the matrices or rows, dequantised; the others stay as they are."""
        return dequantise(self.packed[index], self.kind, self.dtype)


def as_held(
    array: Any, inputs: int, default: str | None, dtype: DTypeLike, rounds_states: bool = False
) -> Blocks | Float[Array, "*X I"]:
    """Returns a loaded array as it is held: bytes as blocks, of the format that they have."""
    if array.dtype != jnp.uint8:
        return array
    kind = kind_of(array.shape[-1], inputs, default or "q4_k")
    assert kind is not None, "loaded or made as blocks of a format"
    return Blocks(array, kind, dtype, rounds_states)


def look_up(table: Blocks | Float[Array, "V E"], tokens: Int[Array, "*S"]) -> Float[Array, "*S E"]:
    """Returns the embeddings of tokens, from blocks or numbers."""
    if not isinstance(table, Blocks):
        if table.dtype.itemsize == 2 and native.on_one_device(table):
            return native.natively(_by_bits, mesh_axes.look_up, table, tokens)
        return mesh_axes.look_up(table, tokens)
    return dequantise(mesh_axes.look_up(table.packed, tokens), table.kind, table.dtype)


def _by_bits(table: Float[Array, "V E"], tokens: Int[Array, "*S"]) -> Float[Array, "*S E"]:
    """Looks up rows as whole numbers: XLA for a CPU would widen a table of 16-bit floats."""
    rows = mesh_axes.look_up(jax.lax.bitcast_convert_type(table, jnp.uint16), tokens)
    return jax.lax.bitcast_convert_type(rows, table.dtype)


def parameter(
    module: nn.Module,
    name: str,
    shape: tuple[int, ...],
    kind: str,
    dtype: DTypeLike,
    rounds_states: bool = False,
) -> Blocks:
    """Returns weights in blocks; made at random where there are none."""
    where, size = packed_shape(shape, kind), SIZES[kind]

    def random(key: Array) -> Array:
        # Weights between -0.08 and 0.08.
        blocks = jax.random.bits(key, (*where[:-1], where[-1] // size, size), jnp.uint8)
        for start, number in _HALVES[kind].items():
            blocks = blocks.at[..., start : start + 2].set(
                np.array([number], np.float16).view(np.uint8)
            )
        return blocks.reshape(where)

    return Blocks(module.param(name, random), kind, dtype, rounds_states)


_HALVES = {
    "q8_0": {0: 0.08 / 128},
    "q4_0": {0: 0.08 / 8},
    "q4_1": {0: 0.08 / 8, 2: -0.08},
    "q4_k": {0: 0.08 / 8 / 63, 2: 0.08 / 63},
    "q6_k": {208: 0.08 / 32 / 128},
}
"""Places of a block's numbers in float16, and the numbers of random weights."""
