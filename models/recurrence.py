"""Gated linear attention with one matrix per head as its memory, in trees and committed.

With keys k, values v, decays g (logarithms, at most 0) and queries q, a head's state is

    S_i = exp(g_i) S_p + k_i u_i^T,    o_i = S_i^T q_i,

where p is the token before i: in a tree its parent. In a state space model (Mamba-2; Dao and Gu
2024, arXiv 2405.21060) u_i is v_i. By the gated delta rule (Yang et al. 2024, arXiv 2412.06464,
equation 10) it is what v_i differs by from the value that the state holds for the key,
u_i = beta_i (v_i - exp(g_i) S_p^T k_i).

Nothing of a tree is kept but k, u and g of its nodes, from which `commit` makes the state behind
the accepted path. There are two forms of both. The kernels of a CPU
(`jspec._xla.native.recurrence`) take one step after the other, each node from its parent's state,
so that a node has the bits of its token in plain decoding. Elsewhere the steps of a tree are three
products under the mask of tree attention, and no node's state is made; a long text is cut into
chunks.
"""

from typing import Any, ClassVar, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int

from jspec._xla import native
from jspec._xla.mesh_axes import ROWS, WEIGHTS
from jspec.models.attention import of_layer

CHUNK = 64
"""Tokens of a chunk: that many steps are one product, and no tree of so many is cut."""


class Mixer(Protocol):
    """A mixer in place of attention: its sizes and its network.

    A key head serves H / J value heads, adjacent ones.
    """

    @property
    def num_heads(self) -> int:
        """H, of values."""
        ...

    @property
    def num_key_heads(self) -> int:
        """J, of queries and keys."""
        ...

    @property
    def key_dim(self) -> int: ...

    @property
    def value_dim(self) -> int: ...

    @property
    def kernel_size(self) -> int:
        """Tokens that the convolution sees, the token itself among them."""
        ...

    def network(self, config: Any, dtype: Any, param_dtype: Any) -> nn.Module:
        """Its module, called with states, a mask and a `RecurrentState`; the name is "mixer"."""
        ...


@struct.dataclass
class RecurrentState:
    """A layer's state after the committed tokens; scanned layers are adjacent in a head."""

    mesh_axes: ClassVar = (ROWS, WEIGHTS)

    states: Float32[Array, "B H K D"] | Any
    window: Float[Array, "B J W C"] | Any
    """The convolution's inputs of the last W tokens, C lanes per key head."""

    def of_layer(self, layer: Int[Array, ""], count: int) -> "RecurrentState":
        """Returns one of `count` layers that share the arrays."""
        return jax.tree.map(lambda x: of_layer(x, x.shape[1] // count, layer, 0, x.shape[2]), self)


@struct.dataclass
class Updates:
    """A tree's node states, for `commit`.

    (`Any`: trees have other leaves too.)
    """

    keys: Float32[Array, "B H N K"] | Any
    values: Float32[Array, "B H N D"] | Any
    """u."""
    decays: Float32[Array, "B H N 1"] | Any
    factors: Float32[Array, "B H N 1"] | Any
    """exp of them, which is computed once: its bits may follow from how many there are."""
    inputs: Float[Array, "B J N C"] | Any
    """Of the convolution."""


def lanes(mixer: Mixer) -> int:
    """Returns C, the convolution's lanes per key head: query, key, and its value heads."""
    return 2 * mixer.key_dim + mixer.num_heads // mixer.num_key_heads * mixer.value_dim


def init(batch: int, mixer: Mixer, layers: int, dtype: DTypeLike) -> RecurrentState:
    """Returns the state before any token, of so many layers."""
    heads, key_heads = mixer.num_heads * layers, mixer.num_key_heads * layers
    return RecurrentState(
        jnp.zeros((batch, heads, mixer.key_dim, mixer.value_dim), jnp.float32),
        jnp.zeros((batch, key_heads, mixer.kernel_size - 1, lanes(mixer)), dtype),
    )


def commit(
    memory: RecurrentState, nodes: Updates, path: Int[Array, "B P"], counts: Int[Array, " B"]
) -> RecurrentState:
    """Returns the state after the first `counts` nodes of the path."""
    states, updates = memory.states, (nodes.keys, nodes.values, nodes.decays, nodes.factors)
    operands = states, updates, path, counts
    if native.takes_recurrence(states, *updates):
        states = native.natively(_replay, _sum, *operands)
    else:
        states = _sum(*operands)
    inputs = _along(nodes.inputs, path).astype(memory.window.dtype)
    inputs = jnp.concatenate([memory.window, inputs], 2)
    last = counts[:, None] + jnp.arange(memory.window.shape[2])
    return RecurrentState(states, jnp.take_along_axis(inputs, last[:, None, :, None], 2))


def _along(x: Float[Array, "B H N *S"], path: Int[Array, "B P"]) -> Float[Array, "B H P *S"]:
    return jnp.take_along_axis(x, path[:, None, :, None], 2)


def _replay(
    states: Float[Array, "B H K D"],
    updates: tuple[Array, ...],
    path: Int[Array, "B P"],
    counts: Int[Array, " B"],
) -> Float[Array, "B H K D"]:
    """Returns the state behind the first `counts` nodes of a path, one after the other."""
    keys, values, _, factors = updates
    return native.replay(states, keys, values, factors, path, counts)


def _sum(
    states: Float[Array, "B H K D"],
    updates: tuple[Array, ...],
    path: Int[Array, "B P"],
    counts: Int[Array, " B"],
) -> Float[Array, "B H K D"]:
    """Returns the same as one product."""
    keys, values, decays, _ = (_along(x, path) for x in updates)
    live = jnp.arange(path.shape[1]) < counts[:, None]
    return sum_states(states, keys, values, decays[..., 0], live)


def convolve(
    inputs: Float[Array, "B J N C"],
    kernel: Float[Array, "J C _"],
    window: Float[Array, "B J W C"],
    seen: Bool[Array, "B N N"],
) -> Float[Array, "B J N C"]:
    """Returns each lane's sum over a node and the W tokens before it on its path."""
    operands = inputs, kernel, window, seen
    if native.takes_recurrence(*operands[:3]):
        return native.natively(native.convolve, _convolve, *operands)
    return _convolve(*operands)


def _convolve(
    inputs: Float[Array, "B J N C"],
    kernel: Float[Array, "J C _"],
    window: Float[Array, "B J W C"],
    seen: Bool[Array, "B N N"],
) -> Float[Array, "B J N C"]:
    before = window.shape[2]
    depth = seen.sum(-1)
    joined = jnp.concatenate([window.astype(inputs.dtype), inputs], 2)
    total = fix_rounding(inputs * kernel[:, None, :, -1])
    for back in range(1, before + 1):
        above = depth - back
        node = (seen & (depth[:, None] == above[..., None])).argmax(-1)
        place = jnp.where(above > 0, before + node, before - 1 + above)
        value = jnp.take_along_axis(joined, place[:, None, :, None], 2)
        total = total + fix_rounding(value * kernel[:, None, :, -1 - back])
    return total


def recur(
    q: Float[Array, "B J N K"],
    k: Float[Array, "B J N K"],
    v: Float[Array, "B H N D"],
    decays: Float[Array, "B H N"],
    beta: Float[Array, "B H N"] | None,
    states: Float32[Array, "B H K D"],
    seen: Bool[Array, "B N N"],
    inputs: Float[Array, "B J N C"],
) -> tuple[Float32[Array, "B H N D"], Updates]:
    """Returns what the heads read at each node, and the updates that are to be committed.

    Args:
        q, k: of the key heads, at the nodes.
        v: of the nodes.
        decays: g.
        beta: of the delta rule; None: the values are added as they are.
        states: behind the committed tokens.
        seen: node i sees itself and its ancestors.
        inputs: what the convolution read of the nodes, to be kept with the updates.

    Returns:
        o, and the updates.
    """
    operands = jax.tree.map(lambda x: x.astype(jnp.float32), (q, k, v, decays, beta))
    # What is kept is what was used, and not computed again, which would be another rounding.
    operands, factors = jax.lax.optimization_barrier((operands, jnp.exp(operands[3])))
    if native.takes_recurrence(*operands[:3], states):
        mixed, values = native.natively(_by_steps, _by_products, operands, factors, states, seen)
    else:
        mixed, values = _by_products(operands, factors, states, seen)
    parts = _of_heads(operands[1], v), values, operands[3][..., None], factors[..., None]
    return mixed, Updates(*parts, inputs)


Given = tuple[Any, ...]
"""q, k, v, decays and beta."""


def _by_steps(operands: Given, factors: Array, states: Array, seen: Array) -> tuple[Array, Array]:
    q, k, v, _, beta = operands
    return native.recur(q, k, v, factors, beta, states, seen)


def _by_products(
    operands: Given, factors: Array, states: Array, seen: Array
) -> tuple[Array, Array]:
    del factors
    q, k, v, decays, beta = operands
    return by_chunks((_of_heads(q, v), _of_heads(k, v), v, decays, beta), states, seen)


def _of_heads(x: Float[Array, "B J N K"], v: Float[Array, "B H N D"]) -> Float[Array, "B H N K"]:
    """Returns keys of the value heads, which share their key head's."""
    return jnp.repeat(x, v.shape[1] // x.shape[1], axis=1)


def fix_rounding(x: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Returns a product, whose rounding a compiler may not leave out before it is added.

    Of a sum of products it would round some, and others not, as each program pleases. A bound that
    no number reaches keeps it from that.
    """
    return jnp.maximum(x, jnp.finfo(x.dtype).min)


def by_chunks(
    given: Given, states: Float[Array, "B H K D"], seen: Bool[Array, "B N N"]
) -> tuple[Float[Array, "B H N D"], Float[Array, "B H N D"]]:
    """Computes o and u of each node: of a tree at once, of a text by chunks."""
    count = seen.shape[1]

    def text(given, states, seen):
        del seen
        chunks = -(-count // CHUNK)

        def cut(x):
            x = jnp.pad(x, [(0, 0), (0, 0), (0, chunks * CHUNK - count)] + [(0, 0)] * (x.ndim - 3))
            return jnp.moveaxis(x.reshape(*x.shape[:2], chunks, CHUNK, *x.shape[3:]), 2, 0)

        causal = jnp.broadcast_to(jnp.tri(CHUNK, dtype=bool), (len(states), CHUNK, CHUNK))
        live = jnp.ones((len(states), CHUNK), bool)

        def step(states, given):
            mixed, values = at_once(given, states, causal)
            return sum_states(states, given[1], values, given[3], live), (mixed, values)

        _, outputs = jax.lax.scan(step, states, jax.tree.map(cut, given))

        def join(x):
            x = jnp.moveaxis(x, 0, 2)
            return x.reshape(*x.shape[:2], -1, x.shape[-1])[:, :, :count]

        return jax.tree.map(join, outputs)

    if count <= CHUNK:
        return at_once(given, states, seen)
    return jax.lax.cond(_is_text(seen), text, at_once, given, states, seen)


@jax.default_matmul_precision("highest")
def at_once(
    given: Given, states: Float[Array, "B H K D"], seen: Bool[Array, "B N N"]
) -> tuple[Float[Array, "B H N D"], Float[Array, "B H N D"]]:
    """Computes o and u of all nodes by products, without their states.

    With D_ij the decay from j to i, unrolling gives o_i = D_i S^T q_i + sum_j D_ij (q_i k_j) u_j
    over a node and its ancestors. By the delta rule u is the solution of (I + A) u = r, in which
    A_ij = beta_i D_ij (k_i k_j) over strict ancestors and r_i = beta_i (v_i - D_i S^T k_i): the
    chunked form (Yang et al. 2024, arXiv 2406.06484, section 3.2) under another mask.
    """
    q, k, v, decays, beta = given
    below = jnp.einsum("bij,bhj->bhi", seen.astype(jnp.float32), decays)
    between = jnp.where(seen[:, None], below[..., None] - below[..., None, :], -jnp.inf)
    decay, total = jnp.exp(between), jnp.exp(below)[..., None]
    read = jnp.einsum("bhik,bhkd->bhid", q, states) * total
    if beta is not None:
        diagonal = jnp.eye(seen.shape[1], dtype=bool)
        system = (
            jnp.where(diagonal, 0, jnp.einsum("bhik,bhjk->bhij", k, k) * decay) * beta[..., None]
        )
        v = (v - jnp.einsum("bhik,bhkd->bhid", k, states) * total) * beta[..., None]
        v = _solve(system, v, jnp.argsort(seen.sum(-1), axis=-1, stable=True))
    scores = jnp.einsum("bhik,bhjk->bhij", q, k) * decay
    return read + jnp.einsum("bhij,bhjd->bhid", scores, v), v


def _solve(
    system: Float[Array, "B H N N"], right: Float[Array, "B H N D"], order: Int[Array, "B N"]
) -> Float[Array, "B H N D"]:
    """Solves (I + A) u = r for u, where A has entries of earlier nodes in this order alone."""
    count = right.shape[2]
    if count == 1:
        return right
    ordered = jnp.swapaxes(_pick(jnp.swapaxes(_pick(system, order), 2, 3), order), 2, 3)
    size = 1 << (count - 1).bit_length()
    lower = jnp.pad(ordered, [(0, 0), (0, 0), (0, size - count), (0, size - count)])
    # The inverse by halves: the inverse of [[a, 0], [l, c]] is [[a', 0], [-c' l a', c']]. It is as
    # stable as substitution row by row, in as many steps as the size has bits.
    inverse, half = jnp.ones((*right.shape[:2], size, 1, 1)), 1
    while half < size:
        pairs = inverse.reshape(*right.shape[:2], -1, 2, half, half)
        upper, under = pairs[:, :, :, 0], pairs[:, :, :, 1]
        blocks = lower.reshape(*right.shape[:2], size // half // 2, 2, half, -1, 2, half)
        diagonal = jnp.arange(size // half // 2)
        left = jnp.moveaxis(blocks[:, :, diagonal, 1, :, diagonal, 0], 0, 2)
        corner = -under @ left @ upper
        inverse = jnp.concatenate(
            [
                jnp.concatenate([upper, jnp.zeros_like(upper)], -1),
                jnp.concatenate([corner, under], -1),
            ],
            -2,
        )
        half *= 2
    solution = inverse[:, :, 0, :count, :count] @ _pick(right, order)
    return _pick(solution, jnp.argsort(order, axis=-1))


@jax.default_matmul_precision("highest")
def sum_states(
    states: Float[Array, "B H K D"],
    k: Float[Array, "B H P K"],
    values: Float[Array, "B H P D"],
    decays: Float[Array, "B H P"],
    live: Bool[Array, "B P"],
) -> Float[Array, "B H K D"]:
    """Returns the state behind the live steps, as one product."""
    live = live[:, None]
    decays = jnp.where(live, decays, 0)
    later = jnp.cumsum(decays[..., ::-1], -1)[..., ::-1]  # from each step on
    behind = jnp.concatenate([later[..., 1:], jnp.zeros_like(later[..., :1])], -1)
    k, values = (jnp.where(live[..., None], x, 0) for x in (k, values))
    added = jnp.einsum("bhpk,bhpd->bhkd", k * jnp.exp(behind)[..., None], values)
    return states * jnp.exp(later[..., 0])[..., None, None] + added


def _is_text(seen: Bool[Array, "B N N"]) -> Bool[Array, ""]:
    """Returns whether each token sees all before it."""
    return (seen == jnp.tri(seen.shape[1], dtype=bool)).all()


def _pick(x: Float[Array, "B H N *S"], nodes: Int[Array, "B N"]) -> Float[Array, "B H N *S"]:
    return jnp.take_along_axis(x, nodes.reshape(len(nodes), 1, -1, *[1] * (x.ndim - 3)), 2)
