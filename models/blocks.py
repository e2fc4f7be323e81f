"""Weights in blocks of 32, as llama.cpp's GGUF files hold them: Q8_0, Q4_0 and Q4_1.

A block is a scale in float16, in Q4_1 an offset too, and its weights in 8 or 4 bits. The bytes stay
as they are in the file, and are dequantised where they are multiplied. A scale has 11 bits, so that
a weight is exact in float32: the model is the one in float32 that the file stands for. A matrix is
an array of bytes, [O, I / 32 * size]. Embeddings and the head are in blocks too, always of Q8_0.

"q8_0a8", "q4_0a8" and "q4_1a8" are the same weights with activations that are rounded to 8 bits
before each product, 32 by 32, as in llama.cpp: see `jspec.models.eight_bits`.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Int8, UInt8

from jspec._xla import mesh_axes, native

SIZES = {"q8_0": 34, "q4_0": 18, "q4_1": 20}
"""The bytes of a block, by the name of the format."""

ROUNDED_STATES = {f"{kind}a8": kind for kind in SIZES}
"""Formats whose activations are rounded too, and the formats of their weights."""

FORMATS = {kind: kind for kind in SIZES} | ROUNDED_STATES
"""All formats, and the formats of their weights."""

TABLES = "q8_0"
"""The format of embeddings and head."""

LENGTH = 32
"""Weights of a block, which have one output."""


def fit(shape: tuple[int, ...]) -> bool:
    """Returns whether weights of this shape fill blocks; others stay as they are."""
    return shape[-1] % LENGTH == 0


def packed_shape(shape: tuple[int, ...], kind: str) -> tuple[int, ...]:
    """Returns the shape of the bytes.

    Example:
        >>> packed_shape((5, 64), "q4_0")
        (5, 36)
    """
    return (*shape[:-1], shape[-1] // LENGTH * SIZES[kind])


def packed(weights: Float[np.ndarray, "*X O I"], kind: str) -> UInt8[np.ndarray, "*X O B"]:
    """Returns weights rounded to blocks, as llama.cpp rounds them.

    Raises:
        InputError: if the package `gguf`, which does it, is not installed.
    """
    from jspec.models.gguf.file import library

    gguf = library()
    flat = np.ascontiguousarray(weights, np.float32).reshape(-1, weights.shape[-1])
    blocks = gguf.quants.quantize(flat, gguf.GGMLQuantizationType[kind.upper()])
    return blocks.reshape(packed_shape(weights.shape, kind))


def dequantised(
    packed: UInt8[Array, "*X B"], kind: str, dtype: DTypeLike = jnp.float32
) -> Float[Array, "*X I"]:
    """Returns the weights that the bytes stand for.

    Example:
        >>> import numpy as np
        >>> one = np.zeros(18, np.uint8)
        >>> one[:2], one[2:] = np.float16([0.5]).view(np.uint8), 0x7B
        >>> dequantised(jnp.asarray(one), "q4_0")[jnp.array([0, 15, 16, 31])].tolist()
        [1.5, 1.5, -0.5, -0.5]
    """
    steps, scale, added = parts(packed, kind)
    values = steps.astype(jnp.float32) * scale
    values = values if added is None else values + added
    return values.reshape(*packed.shape[:-1], -1).astype(dtype)


def parts(
    packed: UInt8[Array, "*X B"], kind: str
) -> tuple[Int8[Array, "*X C 32"], Float[Array, "*X C 1"], Float[Array, "*X C 1"] | None]:
    """Returns each block's whole numbers, what multiplies them and what is added to them."""
    blocks = packed.reshape(*packed.shape[:-1], -1, SIZES[kind])
    scale = _half(blocks[..., :2])
    if kind == "q8_0":
        return jax.lax.bitcast_convert_type(blocks[..., 2:], jnp.int8), scale, None
    both = blocks[..., -16:]
    steps = jnp.concatenate([both & 15, both >> 4], -1).astype(jnp.int8)
    if kind == "q4_0":
        return steps - 8, scale, None
    return steps, scale, _half(blocks[..., 2:4])


def _half(two: UInt8[Array, "*X 2"]) -> Float[Array, "*X 1"]:
    """Returns two bytes as float16, in float32."""
    return jax.lax.bitcast_convert_type(two, jnp.float16)[..., None].astype(jnp.float32)


def table(array: Any) -> Any:
    """Returns embeddings or a head as numbers, whether or not they are in blocks."""
    return dequantised(array, TABLES) if array.dtype == jnp.uint8 else array


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
        return dequantised(self.packed[index], self.kind, self.dtype)


def looked_up(
    table: Blocks | Float[Array, "V E"], tokens: Int[Array, "*S"]
) -> Float[Array, "*S E"]:
    """Returns the embeddings of tokens, from blocks or numbers."""
    if not isinstance(table, Blocks):
        if table.dtype.itemsize == 2 and native.on_one_device(table):
            return native.natively(_by_bits, mesh_axes.looked_up, table, tokens)
        return mesh_axes.looked_up(table, tokens)
    return dequantised(mesh_axes.looked_up(table.packed, tokens), table.kind, table.dtype)


def _by_bits(table: Float[Array, "V E"], tokens: Int[Array, "*S"]) -> Float[Array, "*S E"]:
    """Looks up rows as whole numbers: XLA for a CPU would widen a table of 16-bit floats."""
    rows = mesh_axes.looked_up(jax.lax.bitcast_convert_type(table, jnp.uint16), tokens)
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
        most = 128 if kind == "q8_0" else 8
        halves = np.array([0.08 / most, -0.08], np.float16).view(np.uint8)
        head = halves[: 4 if kind == "q4_1" else 2]
        blocks = jax.random.bits(key, (*where[:-1], shape[-1] // LENGTH, size), jnp.uint8)
        return blocks.at[..., : len(head)].set(head).reshape(where)

    return Blocks(module.param(name, random), kind, dtype, rounds_states)
