"""Block verification of the best of several independent chains."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import sampling as samplings
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._xla.manual_axes import vary
from jspec.types import Frame, Tree, Verdict
from jspec.verify import sequence_level
from jspec.verify.block_verification import judge


@dataclass(frozen=True)
class MultiPathBlockVerification:
    """A `Verifier` of K independent chains: greedy multi-path block verification, GBV (Thomas
    and Pal 2026, arXiv:2602.16961).

    At every node the tokens have an order, by p / q. Of the K chains the one that is last in the
    lexicographic order is judged, by block verification; the others only make it likelier that the
    target likes it. The chain that is last of K is drawn from another distribution than one chain
    is: where F is the probability that a chain comes no later, F^K. Its conditional distributions
    take the place of q, and so nothing of the target's is lost. Of one chain it is
    `BlockVerification`.

    The chains are those of `jspec.SpecTr`, or others of one length that are drawn from the root on.

    Args:
        num_chains: K, all that were drawn, whether they begin alike or not.

    Raises:
        InputError: if there is no chain.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> scheme = jspec.Scheme(
        ...     jspec.proposals.with_replacement, jspec.MultiPathBlockVerification(num_chains=4)
        ... )
        >>> jspec.SpecTr(draft, num_chains=4, max_depth=6, scheme=scheme).depth
        6
    """

    num_chains: int

    def __post_init__(self):
        check_integer("num_chains", self.num_chains, 1, None)

    def verdict(self, tree: Tree, logits: Float[Array, "B N V"], frame: Frame) -> Verdict:
        """Decides which chain is judged, and how much of it is kept.

        Args:
            tree: the draft, which says which distributions it was drawn from.
            logits: the target's, at every node.
            frame: keys and sampling of the round; its keys are not consumed.

        Raises:
            InputError: if the tree is of another number of chains, or has no distributions.
        """
        if tree.width != self.num_chains:
            raise InputError(
                f"num_chains is {self.num_chains} and a node of this tree has up to {tree.width} "
                "children; give the verifier as many chains as the drafter has"
            )
        if tree.q is None:
            raise InputError(
                "multi-path block verification needs the distributions q that the chains were "
                "drawn from, and this drafter reports none; take a drafter that samples, or "
                "rule=jspec.rules.coupled"
            )
        p, uniforms = sequence_level.distributions_and_uniforms(logits, frame, tree.depth)
        last = jax.vmap(self._last)(tree, p)
        broken = jnp.take_along_axis(~samplings.is_distribution(logits), last.path, axis=1)
        return judge(last.path, last.drafted, last.length, broken, last.p, last.q, uniforms, frame)

    def _last(self, tree: Tree, p: Float[Array, "N V"]) -> "_Chain":
        """Returns the last of the chains of one row (B is mapped), with what it was drawn from."""
        assert tree.q is not None, "it was checked"
        rows = jnp.arange(p.shape[0]) if tree.q_row is None else tree.q_row
        all_q, nodes = tree.q, jnp.arange(p.shape[0], dtype=jnp.int32)

        def descend(now: _Place, _) -> tuple[_Place, tuple]:
            # A node without children needs no row, and may have none.
            q = all_q[jnp.minimum(rows[now.node], all_q.shape[0] - 1)].astype(p.dtype)
            order = jnp.argsort(_ratio(p[now.node], q), stable=True)
            place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
            through = jnp.cumsum(q[order])[place]
            up_to = now.before + (1 - now.before) * jnp.minimum(through, 1.0)
            before = now.before + (1 - now.before) * jnp.clip(through - q, 0.0, 1.0)
            drawn = samplings.normalised(q * _power_gap(up_to, before, self.num_chains), q)
            below = (tree.parents == now.node) & tree.valid & (nodes > 0) & now.there
            # Equal siblings are one node: argmax takes the first of them.
            child = jnp.where(below, place[tree.tokens], -1).argmax().astype(jnp.int32)
            token = tree.tokens[child]
            there = below.any()
            share = before[token] / jnp.where(up_to[token] > 0, up_to[token], 1.0)
            return _Place(child, share, there), (child, token, drawn, there)

        start = _Place(jnp.zeros((), jnp.int32), jnp.zeros((), p.dtype), jnp.ones((), bool))
        start = vary(start, p, all_q, tree.tokens)
        _, (path, tokens, drawn, there) = jax.lax.scan(descend, start, length=tree.depth)
        path = jnp.concatenate([jnp.zeros(1, jnp.int32), path])
        return _Chain(path, tokens, there.sum(dtype=jnp.int32), p[path], drawn)


class _Chain(NamedTuple):
    """A chain, and the distributions along it."""

    path: Int[Array, " P"]
    drafted: Int[Array, " P-1"]
    length: Int[Array, ""]
    p: Float[Array, "P V"]
    q: Float[Array, "P-1 V"]
    """Quantities of a chain that is the last of K."""


class _Place(NamedTuple):
    """A node on the way down."""

    node: Int[Array, ""]
    before: Float[Array, ""]
    """Of the chains that come no later than those through the node, the share that come before."""
    there: Bool[Array, ""]


def _ratio(p: Float[Array, " V"], q: Float[Array, " V"]) -> Float[Array, " V"]:
    """Returns p / q, by which tokens are ordered; any order is as lossless."""
    return p / jnp.where(q > 0, q, jnp.inf)


def _power_gap(
    up_to: Float[Array, " V"], before: Float[Array, " V"], num: int
) -> Float[Array, " V"]:
    """Returns (a^K - b^K) / (a - b) as a sum, which is exact where a and b are close."""
    terms = (up_to**i * before ** (num - 1 - i) for i in range(num))
    return sum(terms, start=jnp.zeros_like(up_to))
