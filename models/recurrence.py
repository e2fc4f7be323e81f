"""Linear attention with gates, whose memory is one matrix a head: in a tree, and committed.

With keys k, values v, decays g (logarithms, at most 0) and queries q, a head's state is

    S_i = exp(g_i) S_p + k_i u_i^T,    o_i = S_i^T q_i,

where p is the token before i: in a tree its parent. In a state space model (Mamba-2; Dao and Gu
2024, arXiv 2405.21060) u_i is v_i. By the gated delta rule (Yang et al. 2024, arXiv 2412.06464,
equation 10) it is what v_i differs by from the value that the state holds for the key,
u_i = beta_i (v_i - exp(g_i) S_p^T k_i).

Nothing of a tree is kept but k, u and g of its nodes, from which `commit` makes the state behind
the accepted path. There are two forms of both. On a CPU it is one step after the other, each node
from its parent's state, so that a node has the bits of its token in plain decoding. Elsewhere the
steps of a tree are three products under the mask of tree attention, and no node's state is made;
a long text is cut into chunks.
"""

from typing import Any, ClassVar, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int

from jspec._xla.mesh_axes import ROWS, WEIGHTS
from jspec.models.attention import of_layer

CHUNK = 64
"""Tokens of a chunk: that many steps are one product, and no tree of so many is cut."""


class Mixer(Protocol):
    """What a layer has in place of attention: sizes, and the network of them.

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
    """What a layer knows of the committed tokens; scanned layers stand side by side in a head."""

    mesh_axes: ClassVar = (ROWS, WEIGHTS)

    states: Float32[Array, "B H K D"] | Any
    window: Float[Array, "B J W C"] | Any
    """What the convolution reads of the last W tokens, C lanes for each key head."""

    def of_layer(self, layer: Int[Array, ""], count: int) -> "RecurrentState":
        """One of `count` layers that share the arrays."""
        return jax.tree.map(lambda x: of_layer(x, x.shape[1] // count, layer, 0, x.shape[2]), self)


@struct.dataclass
class Updates:
    """What `commit` needs of a tree's nodes.

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
    """C, what the convolution reads for each key head: query, key, and its value heads."""
    return 2 * mixer.key_dim + mixer.num_heads // mixer.num_key_heads * mixer.value_dim


def init(batch: int, mixer: Mixer, layers: int, dtype: DTypeLike) -> RecurrentState:
    """The state before any token, of so many layers."""
    heads, key_heads = mixer.num_heads * layers, mixer.num_key_heads * layers
    return RecurrentState(
        jnp.zeros((batch, heads, mixer.key_dim, mixer.value_dim), jnp.float32),
        jnp.zeros((batch, key_heads, mixer.kernel_size - 1, lanes(mixer)), dtype),
    )


def commit(
    memory: RecurrentState, nodes: Updates, path: Int[Array, "B P"], counts: Int[Array, " B"]
) -> RecurrentState:
    """The state behind the first `counts` nodes of the path; see `jspec.protocols.CausalLM`."""
    picked = jax.tree.map(lambda x: jnp.take_along_axis(x, path[:, None, :, None], 2), nodes)
    live = jnp.arange(path.shape[1]) < counts[:, None]
    states = jax.lax.platform_dependent(
        *(memory.states, picked, live),
        cpu=lambda states, to, live: _replayed(
            states, to.keys, to.values, to.factors[..., 0], live
        ),
        default=lambda states, to, live: _summed(
            states, to.keys, to.values, to.decays[..., 0], live
        ),
    )
    inputs = jnp.concatenate([memory.window, picked.inputs.astype(memory.window.dtype)], 2)
    last = counts[:, None] + jnp.arange(memory.window.shape[2])
    return RecurrentState(states, jnp.take_along_axis(inputs, last[:, None, :, None], 2))


def convolved(
    inputs: Float[Array, "B J N C"],
    kernel: Float[Array, "J C _"],
    window: Float[Array, "B J W C"],
    seen: Bool[Array, "B N N"],
) -> Float[Array, "B J N C"]:
    """Each lane's sum over a node and the W tokens before it on its path."""
    before = window.shape[2]
    depth = seen.sum(-1)
    joined = jnp.concatenate([window.astype(inputs.dtype), inputs], 2)
    total = rounded(inputs * kernel[:, None, :, -1])
    for back in range(1, before + 1):
        above = depth - back
        node = (seen & (depth[:, None] == above[..., None])).argmax(-1)
        place = jnp.where(above > 0, before + node, before - 1 + above)
        there = jnp.take_along_axis(joined, place[:, None, :, None], 2)
        total = total + rounded(there * kernel[:, None, :, -1 - back])
    return total


def recur(
    q: Float[Array, "B H N K"],
    k: Float[Array, "B H N K"],
    v: Float[Array, "B H N D"],
    decays: Float[Array, "B H N"],
    beta: Float[Array, "B H N"] | None,
    states: Float32[Array, "B H K D"],
    seen: Bool[Array, "B N N"],
    inputs: Float[Array, "B J N C"],
) -> tuple[Float32[Array, "B H N D"], Updates]:
    """What the heads read at each node, and the updates that are to be committed.

    Args:
        q, k, v: of the nodes.
        decays: g.
        beta: of the delta rule; None: the values are added as they are.
        states: behind the committed tokens.
        seen: node i sees itself and its ancestors.
        inputs: what the convolution read of the nodes, to be kept with the updates.

    Returns:
        o, and the updates.
    """
    given = jax.tree.map(lambda x: x.astype(jnp.float32), (q, k, v, decays, beta))
    # What is kept is what was used, and not computed again, which would be another rounding.
    given, factors = jax.lax.optimization_barrier((given, jnp.exp(given[3])))
    mixed, values = jax.lax.platform_dependent(
        *(given, factors, states, seen),
        cpu=lambda given, factors, *rest: by_steps((*given[:3], factors, given[4]), *rest),
        default=lambda given, _, *rest: by_chunks(given, *rest),
    )
    kept = given[1], values, given[3][..., None], factors[..., None]
    return mixed, Updates(*kept, inputs)


Given = tuple[Any, ...]
"""q, k, v, decays and beta."""


def _step(
    q: Float[Array, "B H K"] | None,
    k: Float[Array, "B H K"],
    v: Float[Array, "B H D"],
    factor: Float[Array, "B H"],
    beta: Float[Array, "B H"] | None,
    states: Float[Array, "B H K D"],
) -> tuple[Any, Float[Array, "B H D"], Float[Array, "B H K D"]]:
    """One token: o, or None where q is, u and the state."""
    states = rounded(states * factor[..., None, None])
    if beta is not None:
        v = (v - _sum_of_keys(states * k[..., None])) * beta[..., None]
    states = states + rounded(k[..., None] * v[..., None, :])
    return None if q is None else _sum_of_keys(states * q[..., None]), v, states


def rounded(x: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """A product, whose rounding a compiler may not leave out before it is added.

    Of a sum of products it would round some, and others not, as each program pleases. A bound that
    no number reaches keeps it from that.
    """
    return jnp.maximum(x, jnp.finfo(x.dtype).min)


def _sum_of_keys(x: Float[Array, "B H K D"]) -> Float[Array, "B H D"]:
    """The sum over K in an order that is always the same: halves are added, and halves of these."""
    size = x.shape[2]
    x = jnp.pad(rounded(x), ((0, 0), (0, 0), (0, (1 << (size - 1).bit_length()) - size), (0, 0)))
    while x.shape[2] > 1:
        x = x[:, :, : x.shape[2] // 2] + x[:, :, x.shape[2] // 2 :]
    return x[:, :, 0]


def by_steps(
    given: Given, states: Float[Array, "B H K D"], seen: Bool[Array, "B N N"]
) -> tuple[Float[Array, "B H N D"], Float[Array, "B H N D"]]:
    """o and u of each node, from its parent's state, the parents first; exp(g) is given for g."""
    count = seen.shape[1]

    def along(given: Given, held: Array, before: Any, after: Any) -> tuple[Array, Array]:
        """Through the nodes; `before` is a node's parent's state, `after` keeps its own."""

        def one(number, carry):
            held, found = carry
            q, k, v, factor, beta = jax.tree.map(lambda x: _at(x, number, 2), given)
            mixed, values, own = _step(q, k, v, factor, beta, before(held, number))
            found = jax.tree.map(lambda x, new: _put(x, new, number, 2), found, (mixed, values))
            # XLA writes in place only what is surely not read any more. Never true, which it does
            # not know.
            last = mixed.reshape(-1)[-1]
            there = number + (jnp.isnan(last) & jnp.isinf(last)).astype(number.dtype)
            return after(held, own, there), found

        # As many as there are nodes, which XLA does not know: one step is then compiled by itself,
        # and has the same bits in a tree of one node as in one of many.
        steps = jnp.where(seen[0, 0, 0], count, 0)
        room = (jnp.zeros_like(given[2]),) * 2
        return jax.lax.fori_loop(0, steps, one, (held, room))[1]

    def text(given, states, seen):
        del seen
        return along(given, states, lambda held, _: held, lambda _, own, __: own)

    def tree(given, states, seen):
        depth = seen.sum(-1)
        order = jnp.argsort(depth, axis=-1, stable=True)
        place = jnp.argsort(order, axis=-1)  # of each node; the committed state has the last
        ends = jnp.concatenate([place, jnp.full_like(place[:, :1], count)], 1)
        parents = jnp.take_along_axis(_parents(seen, depth), order, 1)
        parents = jnp.take_along_axis(ends, parents, 1)
        held = jnp.zeros((count + 1, *states.shape), states.dtype).at[count].set(states)

        def before(held, number):
            own = _at(parents, number, 1)
            if len(own) == 1:
                return _at(held, own[0], 0)
            return jnp.take_along_axis(held, own[None, :, None, None, None], 0)[0]

        def after(held, own, number):
            return _put(held, own, number, 0)

        found = along(jax.tree.map(lambda x: _picked(x, order), given), held, before, after)
        return jax.tree.map(lambda x: _picked(x, place), found)

    if count <= CHUNK:
        return tree(given, states, seen)
    return jax.lax.cond(_is_text(seen), text, tree, given, states, seen)


def by_chunks(
    given: Given, states: Float[Array, "B H K D"], seen: Bool[Array, "B N N"]
) -> tuple[Float[Array, "B H N D"], Float[Array, "B H N D"]]:
    """o and u of each node: of a tree at once, of a text a chunk at a time."""
    count = seen.shape[1]

    def text(given, states, seen):
        del seen
        chunks = -(-count // CHUNK)

        def cut(x):
            x = jnp.pad(x, [(0, 0), (0, 0), (0, chunks * CHUNK - count)] + [(0, 0)] * (x.ndim - 3))
            return jnp.moveaxis(x.reshape(*x.shape[:2], chunks, CHUNK, *x.shape[3:]), 2, 0)

        causal = jnp.broadcast_to(jnp.tri(CHUNK, dtype=bool), (len(states), CHUNK, CHUNK))
        live = jnp.ones((len(states), CHUNK), bool)

        def one(states, given):
            mixed, values = at_once(given, states, causal)
            return _summed(states, given[1], values, given[3], live), (mixed, values)

        _, found = jax.lax.scan(one, states, jax.tree.map(cut, given))

        def joined(x):
            x = jnp.moveaxis(x, 0, 2)
            return x.reshape(*x.shape[:2], -1, x.shape[-1])[:, :, :count]

        return jax.tree.map(joined, found)

    if count <= CHUNK:
        return at_once(given, states, seen)
    return jax.lax.cond(_is_text(seen), text, at_once, given, states, seen)


@jax.default_matmul_precision("highest")
def at_once(
    given: Given, states: Float[Array, "B H K D"], seen: Bool[Array, "B N N"]
) -> tuple[Float[Array, "B H N D"], Float[Array, "B H N D"]]:
    """o and u of all nodes by products, without their states.

    With D_ij the decay from j to i, unrolling gives o_i = D_i S^T q_i + sum_j D_ij (q_i k_j) u_j
    over a node and its ancestors. By the delta rule u is the solution of (I + A) u = r, in which
    A_ij = beta_i D_ij (k_i k_j) over strict ancestors and r_i = beta_i (v_i - D_i S^T k_i): the
    chunked form (Yang et al. 2024, arXiv 2406.06484, section 3.2) under another mask.
    """
    q, k, v, decays, beta = given
    below = jnp.einsum("bij,bhj->bhi", seen.astype(jnp.float32), decays)
    between = jnp.where(seen[:, None], below[..., None] - below[..., None, :], -jnp.inf)
    decay, whole = jnp.exp(between), jnp.exp(below)[..., None]
    read = jnp.einsum("bhik,bhkd->bhid", q, states) * whole
    if beta is not None:
        own = jnp.eye(seen.shape[1], dtype=bool)
        system = jnp.where(own, 0, jnp.einsum("bhik,bhjk->bhij", k, k) * decay) * beta[..., None]
        v = (v - jnp.einsum("bhik,bhkd->bhid", k, states) * whole) * beta[..., None]
        v = _solved(system, v, jnp.argsort(seen.sum(-1), axis=-1, stable=True))
    scores = jnp.einsum("bhik,bhjk->bhij", q, k) * decay
    return read + jnp.einsum("bhij,bhjd->bhid", scores, v), v


def _solved(
    system: Float[Array, "B H N N"], right: Float[Array, "B H N D"], order: Int[Array, "B N"]
) -> Float[Array, "B H N D"]:
    """u of (I + A) u = r, where A has entries of earlier nodes in this order alone."""
    count = right.shape[2]
    if count == 1:
        return right
    ordered = jnp.swapaxes(_picked(jnp.swapaxes(_picked(system, order), 2, 3), order), 2, 3)
    size = 1 << (count - 1).bit_length()
    lower = jnp.pad(ordered, [(0, 0), (0, 0), (0, size - count), (0, size - count)])
    # The inverse by halves: that of [[a, 0], [l, c]] is [[a', 0], [-c' l a', c']]. It is as stable
    # as substitution row by row, in as many steps as the size has bits.
    inverse, half = jnp.ones((*right.shape[:2], size, 1, 1)), 1
    while half < size:
        pairs = inverse.reshape(*right.shape[:2], -1, 2, half, half)
        upper, under = pairs[:, :, :, 0], pairs[:, :, :, 1]
        blocks = lower.reshape(*right.shape[:2], size // half // 2, 2, half, -1, 2, half)
        own = jnp.arange(size // half // 2)
        left = jnp.moveaxis(blocks[:, :, own, 1, :, own, 0], 0, 2)
        corner = -under @ left @ upper
        inverse = jnp.concatenate(
            [
                jnp.concatenate([upper, jnp.zeros_like(upper)], -1),
                jnp.concatenate([corner, under], -1),
            ],
            -2,
        )
        half *= 2
    found = inverse[:, :, 0, :count, :count] @ _picked(right, order)
    return _picked(found, jnp.argsort(order, axis=-1))


def _replayed(
    states: Float[Array, "B H K D"],
    k: Float[Array, "B H P K"],
    values: Float[Array, "B H P D"],
    factors: Float[Array, "B H P"],
    live: Bool[Array, "B P"],
) -> Float[Array, "B H K D"]:
    """The state behind the live steps, one after the other."""

    def one(number, states):
        key, value, factor = (_at(x, number, 2) for x in (k, values, factors))
        _, _, after = _step(None, key, value, factor, None, states)
        return jnp.where(live[:, number, None, None, None], after, states)

    return jax.lax.fori_loop(0, live.sum(-1).max(), one, states)


@jax.default_matmul_precision("highest")
def _summed(
    states: Float[Array, "B H K D"],
    k: Float[Array, "B H P K"],
    values: Float[Array, "B H P D"],
    decays: Float[Array, "B H P"],
    live: Bool[Array, "B P"],
) -> Float[Array, "B H K D"]:
    """The same as one product."""
    live = live[:, None]
    decays = jnp.where(live, decays, 0)
    later = jnp.cumsum(decays[..., ::-1], -1)[..., ::-1]  # from each step on
    behind = jnp.concatenate([later[..., 1:], jnp.zeros_like(later[..., :1])], -1)
    k, values = (jnp.where(live[..., None], x, 0) for x in (k, values))
    added = jnp.einsum("bhpk,bhpd->bhkd", k * jnp.exp(behind)[..., None], values)
    return states * jnp.exp(later[..., 0])[..., None, None] + added


def _is_text(seen: Bool[Array, "B N N"]) -> Bool[Array, ""]:
    """Whether each token sees all before it."""
    return (seen == jnp.tri(seen.shape[1], dtype=bool)).all()


def _parents(seen: Bool[Array, "B N N"], depth: Int[Array, "B N"]) -> Int[Array, "B N"]:
    """The parent of each node, its deepest ancestor; a root's is N."""
    count = seen.shape[1]
    above = jnp.where(seen & ~jnp.eye(count, dtype=bool), depth[:, None], 0)
    return jnp.where(depth > 1, above.argmax(-1), count)


def _picked(x: Float[Array, "B H N *S"], nodes: Int[Array, "B N"]) -> Float[Array, "B H N *S"]:
    return jnp.take_along_axis(x, nodes.reshape(len(nodes), 1, -1, *[1] * (x.ndim - 3)), 2)


def _at(x: Array, place: Int[Array, ""], axis: int) -> Array:
    return jax.lax.dynamic_index_in_dim(x, place, axis, keepdims=False)


def _put(x: Array, new: Array, place: Int[Array, ""], axis: int) -> Array:
    return jax.lax.dynamic_update_index_in_dim(x, new, place, axis)
