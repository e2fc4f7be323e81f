"""Weights in 8 bits: int8 or float8, with a factor for each output of a product.

A product's weights are rounded to 8 bits when they are loaded, each output's by a factor of its
own, and cast to the dtype of activations where they are multiplied; activations keep their dtype.
So a model takes half of the memory of 16 bits, and another set of weights is verified: its tokens
are exact in themselves. Embeddings, the head, norms, biases and routers stay as they are: they are
small in large models, and the head decides on every token.

Formats of GGUF files, which have a scale for every 32 weights, are in `jspec.models.blocks`.

"w8a8" rounds the activations too, before each product: every row by a factor of its own, the
largest of its numbers over 127 (dynamic quantisation, as in LLM.int8() of Dettmers et al. 2022,
section 2, vector-wise, without outliers). Then the sums are of integers, and exact in any order.
"q8_0a8" and its like do the same by blocks of 32, with the weights of GGUF files.
"""

from functools import reduce
from itertools import count, takewhile
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Int8, Num, UInt8

from jspec.models import blocks

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}
"""The largest number of each dtype; all are symmetric around 0."""

ROUNDED_STATES = "w8a8"
"""Weights in int8, and activations that are rounded to it for each product."""

FORMATS = (*LARGEST, ROUNDED_STATES, *blocks.FORMATS)
"""Formats that may be named in place of a dtype of weights."""

TABLES = (("embed",), ("head",))
"""Paths of the embeddings and of the head."""

LEAST = 1e-30
"""Rows of activations whose numbers are all smaller are zeros."""

SUFFIX = "_scale"
"""Suffix of the factors' name, after the weights' name."""

Path = tuple[str, ...]


def dtype_name(param_dtype: DTypeLike) -> str:
    """Returns the name of a dtype of weights, or of a format.

    Example:
        >>> import jax.numpy as jnp
        >>> dtype_name(jnp.int8), dtype_name("w8a8")
        ('int8', 'w8a8')
    """
    if isinstance(param_dtype, str) and param_dtype in FORMATS:
        return str(param_dtype)
    return jnp.dtype(param_dtype).name


def describe_dtypes(network: Any) -> str:
    """Names the dtypes of a model's activations, weights, keys and values, where they differ."""
    text, weights = dtype_name(network.dtype), dtype_name(network.param_dtype)
    if weights != text:
        text += f", weights in {weights}"
    return text if network.kv_dtype is None else f"{text}, keys in {dtype_name(network.kv_dtype)}"


def array_dtype(param_dtype: DTypeLike) -> Any:
    """Returns the dtype of the arrays."""
    return jnp.int8 if dtype_name(param_dtype) == ROUNDED_STATES else jnp.dtype(param_dtype)


def low_precision(dtype: DTypeLike) -> bool:
    """Returns whether products have weights of this dtype or format."""
    return dtype_name(dtype) in FORMATS


def high_precision(param_dtype: DTypeLike, dtype: DTypeLike) -> Any:
    """Returns the dtype of parameters that are not rounded to 8 bits.

    Example:
        >>> high_precision("int8", "bfloat16"), high_precision("bfloat16", "float32")
        ('bfloat16', 'bfloat16')
    """
    return dtype if low_precision(param_dtype) else param_dtype


def is_quantised(path: Path) -> bool:
    """Returns whether this path's weights are rounded: products, but not routers.

    Example:
        >>> is_quantised(("layers_0", "qkv", "weight")), is_quantised(("layers_0", "qkv", "bias"))
        (True, False)
    """
    *_, module, name = ("", *path)
    products = name == "weight" and module != "router"
    return products or (module == "experts" and name in ("gate_up", "down"))


def in_blocks(path: Path, shape: tuple[int, ...], param_dtype: DTypeLike) -> str | None:
    """Returns the format of blocks that the weights of this path are in; None: none.

    Example:
        >>> path = ("layers_0", "down", "weight")
        >>> in_blocks(path, (8, 64), "q4_0"), in_blocks(path, (8, 40), "q4_0")
        ('q4_0', None)
        >>> in_blocks(("embed",), (8, 64), "q4_0"), in_blocks(path, (8, 64), "int8")
        ('q8_0', None)
    """
    kind = blocks.FORMATS.get(dtype_name(param_dtype))
    if kind and path in TABLES:
        kind = kind if kind in blocks.FROM_FILES else blocks.TABLES
    elif not is_quantised(path):
        return None
    return kind if kind and blocks.fit(shape, kind) else None


def table(
    module: nn.Module, name: str, shape: tuple[int, int], param_dtype: DTypeLike, dtype: DTypeLike
) -> blocks.Blocks | Float[Array, "V E"]:
    """Returns embeddings, or the head."""
    if low_precision(param_dtype) and module.has_variable("params", name):
        rounds = dtype_name(param_dtype) in blocks.ROUNDED_STATES  # w8a8 leaves tables alone
        return blocks.as_held(module.get_variable("params", name), shape[-1], None, dtype, rounds)
    if kind := in_blocks((name,), shape, param_dtype):
        return blocks.parameter(module, name, shape, kind, dtype, rounds_states(param_dtype))
    return module.param(
        name, nn.initializers.normal(0.02), shape, high_precision(param_dtype, dtype)
    )


def rounds_states(param_dtype: DTypeLike) -> bool:
    """Tells whether what weights are multiplied with is rounded to 8 bits.

    Example:
        >>> rounds_states("w8a8"), rounds_states("q4_0a8"), rounds_states("q4_0")
        (True, True, False)
    """
    return dtype_name(param_dtype) in (ROUNDED_STATES, *blocks.ROUNDED_STATES)


def by_output(param_dtype: DTypeLike) -> bool:
    """Returns whether the weights of products have a factor for each output."""
    return low_precision(param_dtype) and dtype_name(param_dtype) not in blocks.FORMATS


def quantise(
    weights: Float[np.ndarray, "*X O I"], dtype: DTypeLike
) -> tuple[Num[np.ndarray, "*X O I"], Float[np.ndarray, "*X O"]]:
    """Returns weights in 8 bits and the factor of each output.

    Example:
        >>> import numpy as np
        >>> small, factors = quantise(np.array([[1.0, -2.0], [0.0, 0.0]]), "int8")
        >>> small.tolist(), (factors * 127).tolist()
        ([[64, -127], [0, 0]], [2.0, 0.0])
    """
    dtype = array_dtype(dtype)
    largest = LARGEST[jnp.dtype(dtype).name]
    factors = np.abs(weights).max(axis=-1) / largest
    scaled = weights / np.where(factors == 0, 1, factors)[..., None]
    steps = np.rint(scaled) if jnp.dtype(dtype).kind == "i" else scaled
    return steps.clip(-largest, largest).astype(dtype), factors.astype(np.float32)


@struct.dataclass
class LowPrecision:
    """Weights in 8 bits, an array of matrices or one."""

    weights: Num[Array, "*X O I"]
    factors: Float[Array, "*X O"]
    dtype: Any = struct.field(pytree_node=False)
    """The dtype that they are cast to."""
    rounds_states: bool = struct.field(pytree_node=False, default=False)
    """True if what they are multiplied with is rounded to 8 bits."""


def as_wide(weights: Num[Array, "*X"], dtype: DTypeLike) -> Num[Array, "*X"]:
    """Returns weights in a dtype, or as they are where it holds each of their numbers.

    Example:
        >>> import jax.numpy as jnp
        >>> as_wide(jnp.ones(2, jnp.bfloat16), "float32").dtype.name
        'bfloat16'
    """
    narrow = jnp.promote_types(weights.dtype, dtype) == jnp.dtype(dtype)
    return weights if narrow else weights.astype(dtype)


@struct.dataclass
class OneOf:
    """A layer's weights, as those of all layers and its number among them: nothing is copied."""

    weights: Num[Array, "L ..."]
    layer: Int[Array, ""]


Held = LowPrecision | blocks.Blocks | Float[Array, "*X O I"]
"""Weights of a product as models hold them: a matrix, or several."""


def parameter(
    module: nn.Module, name: str, shape: tuple[int, ...], param_dtype: DTypeLike, dtype: DTypeLike
) -> tuple[Held | tuple[Held, ...], Int[Array, ""] | None]:
    """Returns weights of a product, with their factors where they are of low precision.

    Returns:
        The weights of the layer and None, or of all layers and its number. In blocks they are
        several matrices, each with the next outputs, where a file has these in several formats.
    """
    rounds, kind = rounds_states(param_dtype), blocks.FORMATS.get(dtype_name(param_dtype))
    first = module.get_variable("params", name)
    if kind is not None and first is not None:
        later = (module.get_variable("params", f"{name}_{n}") for n in count(1))
        arrays = [first, *takewhile(lambda array: array is not None, later)]
        parts = [
            blocks.as_held(getattr(array, "weights", array), shape[-1], kind, dtype, rounds)
            for array in arrays
        ]
        wide = [part if isinstance(part, blocks.Blocks) else as_wide(part, dtype) for part in parts]
        return tuple(wide) if len(wide) > 1 else wide[0], getattr(first, "layer", None)
    if isinstance(first, OneOf):
        weights = first.weights
        if factors := module.get_variable("params", f"{name}{SUFFIX}"):
            weights = LowPrecision(weights, factors.weights, dtype, rounds)
        return weights, first.layer
    init = nn.initializers.normal(0.02)
    if kind is not None:
        if blocks.fit(shape, kind):
            return blocks.parameter(module, name, shape, kind, dtype, rounds), None
        param_dtype = dtype
    if not low_precision(param_dtype):
        return as_wide(module.param(name, init, shape, param_dtype), dtype), None
    weight_dtype = array_dtype(param_dtype)
    largest = LARGEST[jnp.dtype(weight_dtype).name]

    def random(key: Array) -> Array:
        # The largest of some thousand normal numbers is about four.
        return (
            (jax.random.normal(key, shape) * largest / 4)
            .clip(-largest, largest)
            .astype(weight_dtype)
        )

    factor = nn.initializers.constant(0.02 * 4 / largest)
    factors = module.param(f"{name}{SUFFIX}", factor, shape[:-1], jnp.float32)
    return LowPrecision(module.param(name, random), factors, dtype, rounds), None


def round_states(
    x: Float[Array, "... I"],
) -> tuple[Int8[Array, "... I"], Float[Array, "... 1"]]:
    """Returns each row in 127ths of its largest number, and how much that is.

    A row with a NaN or infinity becomes zeros of the size NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> states, scales = round_states(jnp.array([[1.0, -2.0], [0.0, 0.0]]))
        >>> states.tolist(), (scales * 127).tolist()
        ([[64, -127], [0, 0]], [[2.0], [0.0]])
    """
    x = x.astype(jnp.float32)
    # XLA for a CPU loses a NaN in the maximum of many numbers.
    largest = jnp.abs(x).max(-1, keepdims=True, initial=0, where=~jnp.isnan(x))
    largest = jnp.where(jnp.isnan(x).any(-1, keepdims=True), jnp.nan, largest)
    good = jnp.isfinite(largest) & (largest >= LEAST)
    inverse = 127 / jnp.where(good, largest, 1)
    states = jnp.where(good, jnp.rint(x * inverse), 0).astype(jnp.int8)
    # To divide by 127 would be another number on devices that multiply with its inverse.
    scales = jnp.where(good, largest * np.float32(1 / 127), 0)
    return states, jnp.where(jnp.isfinite(largest), scales, jnp.nan)


def rounded_product(
    x: Float[Array, "... I"], weights: Int8[Array, "O I"], factors: Float[Array, "O"]
) -> Float[Array, "... O"]:
    """Multiplies x, rounded to 8 bits per row, by the weights and their factors, in float32."""
    states, scales = round_states(x)
    sums = jnp.einsum("...i,oi->...o", states, weights, preferred_element_type=jnp.int32)
    return sums.astype(jnp.float32) * scales * factors.astype(jnp.float32)


def rounded_block_product(
    x: Float[Array, "... I"], packed: UInt8[Array, "O B"], kind: str
) -> Float[Array, "... O"]:
    """Multiplies x, rounded to 8 bits 32 by 32, by rows of weights in blocks, in float32.

    Blocks are added one by one, in float32.
    """
    states, scales = round_states(x.reshape(*x.shape[:-1], -1, blocks.LENGTH))
    totals = scales * states.sum(-1, keepdims=True, dtype=jnp.int32).astype(jnp.float32)
    rows = states, scales, totals
    columns = blocks.parts(packed, kind)
    by_block = [jax.tree.map(lambda part: jnp.moveaxis(part, -2, 0), x) for x in (rows, columns)]

    def add(carry, block):
        # What is multiplied in one step is added in the next: some compilers would round but once.
        (states, scale, total), (steps, factor, added) = block
        sums = jnp.einsum("...i,oi->...o", states, steps, preferred_element_type=jnp.int32)
        terms = [sums.astype(jnp.float32) * (scale * factor[:, 0])]
        terms += [] if added is None else [added[:, 0] * total]
        return (reduce(jnp.add, carry), *terms), None

    nothing = jnp.zeros((*x.shape[:-1], len(packed)), jnp.float32)
    carry, _ = jax.lax.scan(add, (nothing,) * sum(part is not None for part in columns), by_block)
    return reduce(jnp.add, carry)
