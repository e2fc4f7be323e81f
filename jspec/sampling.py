"""From logits to distributions, from keys to noise: the only such code in the project.

The target, every draft model and the plain baseline go through the same `probabilities`.
Two copies of this transform that differ in order are how engines lose losslessness.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from jspec._validate.errors import InputError
from jspec._validate.row_arguments import concrete_values, integers, reals
from jspec._xla.manual_axes import vary
from jspec.types import Sampling

_ABOVE_ONE = 0x40000000
"""The bit pattern of 2.0, which no probability reaches."""


def by_row(sampling: Sampling | None, batch: int) -> Sampling | None:
    """Returns the checked settings of B rows, as arrays [B].

    Raises:
        InputError: if these are not settings, or one is out of range or not one for each row.
    """
    if sampling is None:
        return None
    if not isinstance(sampling, Sampling):
        raise InputError(
            f"sampling is {sampling!r:.80}; pass jspec.Sampling(temperature=..), or None"
        )
    off = "switches it off"
    return Sampling(
        temperature=reals(sampling.temperature, batch, "temperature", 0, 1e6, "0 is greedy"),
        top_k=integers(sampling.top_k, batch, "top_k", 0, 2**31 - 1, f"0 {off}"),
        top_p=reals(sampling.top_p, batch, "top_p", 1e-6, 1, f"1 {off}"),
        min_p=reals(sampling.min_p, batch, "min_p", 0, 1, f"0 {off}"),
    )


def key_of(sampling: Sampling | None, key: Any) -> Any:
    """Returns the key of a call: that given, and any where all rows are known to be greedy.

    Args:
        sampling: of the call.
        key: as it was given.

    Raises:
        InputError: if a row draws, or may draw, and there is no key.

    Example:
        >>> key_of(Sampling(temperature=0.0), None)
        0
    """
    if sampling is None or key is not None:
        return key
    temperature = concrete_values(sampling.temperature)
    if temperature is None or temperature.any():
        raise InputError(
            "sampling needs a key and key is None; pass key=jax.random.key(0), or temperature=0, "
            "which is greedy"
        )
    return 0


def probabilities(logits: Float[Array, "B V"], sampling: Sampling) -> Float[Array, "B V"]:
    """Returns the distribution that tokens are drawn from, in float32.

    Temperature first, then top-k, top-p and min-p, each on what the one before left, as in
    `transformers`. A filter that cuts through tokens of equal probability keeps all of them, so
    the distribution does not depend on the order of the vocabulary. Temperature 0 gives the argmax
    (the first of equals).

    Args:
        logits: any float dtype.
        sampling: one setting per row.

    Example:
        >>> logits = jnp.log(jnp.array([[0.5, 0.25, 0.25]]))
        >>> one = jnp.ones(1)
        >>> probabilities(logits, Sampling(one, 0 * one.astype(int), one, 0 * one)).tolist()
        [[0.5, 0.25, 0.25]]
    """
    temperature = jnp.asarray(sampling.temperature)
    wide = logits.astype(jnp.float32)
    greedy = temperature == 0
    probs = jax.nn.softmax(over_temperature(wide, temperature), axis=-1)
    # Each of what follows takes passes over the vocabulary, so it waits until some row asks for it.
    plain = ~(greedy | has_filter(sampling, probs.shape[-1])).any()
    return jax.lax.cond(
        plain, lambda probs: probs, lambda probs: _cut(wide, probs, sampling), probs
    )


def over_temperature(
    logits: Float[Array, "B *N V"], temperature: Float[Array, " B"]
) -> Float[Array, "B *N V"]:
    """Returns logits over their row's temperature, 0 for the largest; in greedy rows over 1.

    Example:
        >>> over_temperature(jnp.array([[3.0, 1.0]] * 2), jnp.array([0.5, 0.0])).tolist()
        [[0.0, -4.0], [0.0, -2.0]]
    """
    wide = logits.astype(jnp.float32)
    # The maximum goes first: a tiny temperature then gives -inf, never inf - inf.
    below = wide - wide.max(-1, keepdims=True)
    divisor = jnp.where(temperature == 0, 1.0, temperature)
    return below / divisor.reshape(-1, *[1] * (logits.ndim - 1))


def node_probabilities(logits: Float[Array, "B N V"], sampling: Sampling) -> Float[Array, "B N V"]:
    """Returns the `probabilities` at N nodes of each row; `sampling` may hold plain numbers."""
    rows = jax.tree.map(lambda value: jnp.broadcast_to(value, logits.shape[:1]), sampling)
    return jax.vmap(probabilities, (1, None), 1)(logits, rows)


def is_distribution(logits: Float[Array, "*S V"]) -> Bool[Array, "*S"]:
    """Returns True where logits give a distribution: no NaN, no +inf, and not -inf alone.

    Single -inf are masked tokens. NaN is looked for by itself: XLA's maximum on a CPU passes it on
    for 2,048 lanes and loses it among 4,096.

    Example:
        >>> is_distribution(jnp.array([[0.0, 1.0], [0.0, jnp.nan]])).tolist()
        [True, False]
    """
    return jnp.isfinite(logits.max(-1)) & ~jnp.isnan(logits).any(-1)


def has_filter(sampling: Sampling, size: int) -> Bool[Array, " B"]:
    """Returns the rows in which some filter may take tokens out of a vocabulary of this size."""
    top_k = jnp.asarray(sampling.top_k)
    by_rank = (top_k > 0) & (top_k < size)
    return by_rank | (jnp.asarray(sampling.top_p) < 1) | (jnp.asarray(sampling.min_p) > 0)


def _cut(
    logits: Float[Array, "B V"], probs: Float[Array, "B V"], sampling: Sampling
) -> Float[Array, "B V"]:
    """Returns the distribution after the filters, and the argmax where the temperature is 0."""
    top_k, top_p = jnp.asarray(sampling.top_k), jnp.asarray(sampling.top_p)
    min_p, size = jnp.asarray(sampling.min_p)[:, None], probs.shape[-1]

    def keep(mask: Bool[Array, "B V"], probs: Float[Array, "B V"]) -> Float[Array, "B V"]:
        rest = jnp.where(mask, probs, 0.0)
        return rest / rest.sum(-1, keepdims=True)

    def reach(is_on, weigh, mass, probs):
        # 32 passes over the vocabulary, so not while no row asks; the other rows stay as they are.
        def cut(probs):
            result = keep(probs >= _threshold(probs, weigh(probs), mass.astype(jnp.float32)), probs)
            return jnp.where(is_on[:, None], result, probs)

        return jax.lax.cond(is_on.any(), cut, lambda probs: probs, probs)

    probs = reach((top_k > 0) & (top_k < size), jnp.ones_like, top_k, probs)
    probs = reach(top_p < 1, lambda probs: probs, top_p, probs)
    likely = probs >= min_p * probs.max(-1, keepdims=True)
    probs = jnp.where(min_p > 0, keep(likely, probs), probs)
    greedy = jnp.asarray(sampling.temperature) == 0
    return jnp.where(greedy[:, None], one_hot(argmax(logits), size), probs)


def _threshold(
    probs: Float[Array, "B V"], weight: Float[Array, "B V"], mass: Float[Array, " B"]
) -> Float[Array, "B 1"]:
    """Returns the largest t such that the tokens of probability >= t weigh at least `mass`.

    Non-negative floats are ordered like their bit patterns, so t is found exactly, from the first
    bits of the pattern to the last, for a fraction of the cost of sorting the vocabulary.
    """
    # A GPU's host launches each pass of a loop by itself.
    low = jax.lax.platform_dependent(*(probs, weight, mass), cuda=_by_digits, default=_by_halves)
    return jax.lax.bitcast_convert_type(low, jnp.float32)[:, None]


def _enough(
    pattern: Int[Array, "*c B"],
    probs: Float[Array, "B V"],
    weight: Float[Array, "B V"],
    mass: Float[Array, " B"],
) -> Bool[Array, "*c B"]:
    """Returns whether tokens of at least this probability (as bits) weigh enough."""
    value = jax.lax.bitcast_convert_type(pattern, jnp.float32)
    probs, weight, mass = (
        jnp.broadcast_to(array, (*value.shape[:-1], *array.shape))
        for array in (probs, weight, mass)
    )
    return jnp.where(probs >= value[..., None], weight, 0.0).sum(-1) >= mass


def _by_halves(
    probs: Float[Array, "B V"], weight: Float[Array, "B V"], mass: Float[Array, " B"]
) -> Int[Array, " B"]:
    """Returns the largest pattern that is enough, by 32 halvings."""

    def halve(_, bounds):
        low, high = bounds  # enough(low), or low is 0; not enough(high)
        middle = low + (high - low) // 2
        good = _enough(middle, probs, weight, mass)
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    low = vary(jnp.zeros(probs.shape[0], jnp.int32), probs, mass)
    return jax.lax.fori_loop(0, 32, halve, (low, jnp.full_like(low, _ABOVE_ONE)))[0]


def _by_digits(
    probs: Float[Array, "B V"], weight: Float[Array, "B V"], mass: Float[Array, " B"]
) -> Int[Array, " B"]:
    """Returns the same in eight passes, each trying fifteen digits side by side."""
    low = vary(jnp.zeros(probs.shape[0], jnp.int32), probs, mass)
    for shift in range(28, -1, -4):
        # Of the first digit 3 and less: with larger ones the pattern is 2.0 and more.
        digits = jnp.arange(1, 16 if shift < 28 else 4, dtype=jnp.int32)[:, None] << shift
        good = _enough(low[None] + digits, probs, weight, mass)
        low = low + (good.sum(0, dtype=jnp.int32) << shift)
    return low


def argmax(x: Float[Array, "*S V"]) -> Int[Array, "*S"]:
    """Returns the index of the largest, the first of equals; a NaN may win.

    Two plain reductions vectorise on a CPU, which `jnp.argmax` over pairs does not (5 times).

    Example:
        >>> argmax(jnp.array([1.0, 3.0, 3.0])).item()
        1
    """
    size = x.shape[-1]
    first = jnp.where(x == x.max(-1, keepdims=True), jnp.arange(size), size - 1)
    return first.min(-1).astype(jnp.int32)


def best_token(logits: Float[Array, "*S V"]) -> tuple[Int[Array, "*S"], Bool[Array, "*S"]]:
    """Returns the `argmax` of each row and `is_distribution`; one kernel does both on a CPU.

    Example:
        >>> best, good = best_token(jnp.array([[0.0, 1.0], [0.0, jnp.nan]]))
        >>> int(best[0]), good.tolist()
        (1, [True, False])
    """
    from jspec._xla import native  # on first use: decoding can be read without it

    def plainly(logits: Float[Array, "*S V"]) -> tuple[Int[Array, "*S"], Bool[Array, "*S"]]:
        return argmax(logits), is_distribution(logits)

    def kernel(logits: Float[Array, "*S V"]) -> tuple[Int[Array, "*S"], Bool[Array, "*S"]]:
        _, best, total = native.top(logits, 1)
        # As `argmax` has it: no number is equal to NaN.
        return jnp.where(jnp.isnan(total), size - 1, best[..., 0]), jnp.isfinite(total)

    size = logits.shape[-1]
    if not native.takes_top(logits, 1):
        return plainly(logits)
    return native.natively(kernel, plainly, logits)


def one_hot(tokens: Int[Array, "..."], size: int) -> Float[Array, "... V"]:
    """Returns the distribution of a certain token, float32."""
    return jax.nn.one_hot(tokens, size, dtype=jnp.float32)


def normalise(
    weights: Float[Array, "*S V"], fallback: Float[Array, "*S V"]
) -> Float[Array, "*S V"]:
    """Returns weights as a distribution; `fallback` where nothing is left.

    Verifiers never draw from the residual then.
    """
    total = weights.sum(-1, keepdims=True)
    return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1.0), fallback)


def row_keys(key: jax.Array, rows: Int[Array, " B"]) -> jax.Array:
    """Returns the keys [B] of the rows, each from its row id and its own key, or that of all."""
    return jax.vmap(jax.random.fold_in, (0 if key.ndim else None, 0))(key, rows)


def fork(keys: jax.Array, positions: Int[Array, " B"], purpose: int) -> jax.Array:
    """Returns keys [B] for other draws than the position's noise; consumes none.

    Args:
        keys: [B] row keys.
        positions: of the round's root, so that each round draws anew.
        purpose: 0 for the acceptance uniforms of the verifier; drafters use 1 and above.
    """

    def derive(key, position):
        # Purposes count down from the top of uint32, where no position ever is.
        return jax.random.fold_in(jax.random.fold_in(key, 2**32 - 1 - purpose), position)

    return jax.vmap(derive)(keys, positions)


def gumbel(keys: jax.Array, positions: Int[Array, " B"], size: int) -> Float[Array, "B V"]:
    """Returns the Gumbel noise of each row's token at a position.

    argmax(log p + noise) is a draw from p, the same draw whoever asks for it: that is what makes
    speculation reproduce plain sampling token for token.

    Example:
        >>> keys = row_keys(jax.random.key(0), jnp.array([0, 1]))
        >>> noise = gumbel(keys, jnp.array([7, 7]), 5)
        >>> bool((noise[1] == gumbel(keys[1:], jnp.array([7]), 5)[0]).all())
        True
    """

    def draw(key, position):
        token_key = jax.random.fold_in(key, position)
        if _by_place(keys):
            return _gumbel_at(token_key, jnp.arange(size, dtype=jnp.uint32), size)
        # "low" has a grid of 2^-23: it never draws the long tail of a large vocabulary.
        return jax.random.gumbel(token_key, (size,), jnp.float32, mode="high")

    return jax.vmap(draw)(keys, positions)


def gumbel_of(
    keys: jax.Array, positions: Int[Array, " B"], tokens: Int[Array, "B c"], size: int
) -> Float[Array, "B c"]:
    """Returns the `gumbel` noise of some tokens alone.

    It is the same but for rounding: what decides is `gumbel`.

    Args:
        keys: [B] row keys.
        positions: whose noise it is.
        tokens: c of each row.
        size: V.

    Example:
        >>> keys, positions = row_keys(jax.random.key(0), jnp.arange(2)), jnp.array([7, 8])
        >>> few = gumbel_of(keys, positions, jnp.array([[5], [900]]), 1000)
        >>> abs(few[1, 0] - gumbel(keys, positions, 1000)[1, 900]).item() < 1e-5
        True
    """
    if not _by_place(keys):
        return jnp.take_along_axis(gumbel(keys, positions, size), tokens, axis=1)

    def draw(key, position, tokens):
        return _gumbel_at(jax.random.fold_in(key, position), tokens.astype(jnp.uint32), size)

    return jax.vmap(draw)(keys, positions, tokens)


def _by_place(keys: jax.Array) -> bool:
    """Returns whether the random bits of a place are a function of the key and the place alone.

    Other generators draw a vocabulary at once.
    """
    config: Any = jax.config
    return config.jax_threefry_partitionable and jax.random.key_impl(keys) == "threefry2x32"


@partial(jax.jit, static_argnames="size")  # traced once, not at each use
def _gumbel_at(key: jax.Array, places: UInt[Array, " c"], size: int) -> Float[Array, " c"]:
    """Returns the noise of `jax.random.gumbel` in its mode "high" at c places."""
    bits = [_bits_at(key, each) for each in (places, places + jnp.uint32(size))]
    high, low = (
        jax.lax.bitcast_convert_type(each >> 9 | jnp.uint32(0x3F800000), jnp.float32) - 1
        for each in bits
    )
    tail = high + jnp.float32(2**-23) * low + jnp.finfo(jnp.float32).tiny
    return -jnp.log(-jnp.log1p(-jnp.where(high >= 0.5, high, tail)))


def _bits_at(key: jax.Array, places: UInt[Array, " c"]) -> UInt[Array, " c"]:
    """Returns the random bits of places under a key: Threefry-2x32-20 (Salmon et al. 2011).

    JAX's own loops over the rounds on a CPU, with passes through memory between them, and takes
    three times as long for a vocabulary.
    """
    first, second = jax.random.key_data(key)
    words = first, second, first ^ second ^ jnp.uint32(0x1BD11BDA)
    left, right = jnp.full_like(places, words[0]), places + words[1]
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            left += right
            right = (right << turn | right >> 32 - turn) ^ left
        left += words[(group + 1) % 3]
        right += words[(group + 2) % 3] + jnp.uint32(group + 1)
    return left ^ right
