"""Traversal verification: a tree judged from its leaves to its root keeps more tokens."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import sampling as samplings
from jspec._validate.errors import InputError
from jspec._xla.manual_axes import vary
from jspec.types import Frame, Tree, Verdict
from jspec.verify import sequence_level


@dataclass(frozen=True)
class TraversalVerification:
    """A `Verifier` of trees drawn without replacement: Weng et al. 2025, arXiv:2505.12398.

    A node is tested when nothing is left below it: first the leftmost leaf, with the probability
    that its whole path deserves. A node that fails is taken out of the tree, its parent's
    distribution becomes what is left of it, and the next leaf is tested. The first that passes is
    kept with all nodes above it. Of a chain this is block verification. `TreeVerifier` forgets,
    once a token is kept, by how much the target likes it more than the draft does; here that makes
    up for a token below that it likes less.

    It takes two steps for every node that is tested, one after another, where `TreeVerifier` takes
    as many as the path that it keeps is long, and it computes the distributions of all nodes.

    Where a node has children may depend on all other tokens, never on their own: whatever is below
    a node, it or something below it is kept with the probability that its path deserves, so that
    the shape of one part of the tree says nothing of whether it failed.

    Example:
        >>> import jspec
        >>> jspec.schemes.TRAVERSAL.verifier == jspec.TraversalVerification()
        True
    """

    def verdict(self, tree: Tree, logits: Float[Array, "B N V"], frame: Frame) -> Verdict:
        """Decides on a path.

        Args:
            tree: the draft, which says which distributions it was drawn from.
            logits: the target's, at every node.
            frame: keys and sampling of the round; its keys are not consumed.

        Raises:
            InputError: if the tree has no distributions.
        """
        if tree.q is None:
            raise InputError(
                "traversal verification needs the distributions q that the children were drawn "
                "from, and this drafter reports none; take a drafter that samples, or "
                "rule=jspec.rules.coupled"
            )
        broken = ~samplings.is_distribution(logits)
        p, uniforms = sequence_level.distributions_and_uniforms(logits, frame, tree.tokens.shape[1])
        valid = tree.valid & ~frame.done[:, None]
        branch = jax.vmap(_traverse)(replace(tree, valid=valid), p, broken, uniforms)
        return Verdict(
            path=jnp.where(jnp.arange(tree.depth + 1) <= branch.depth[:, None], branch.path, 0),
            path_lengths=branch.depth + 1,
            bonus=sequence_level.next_token(branch.depth, branch.residual, frame),
            failed=~frame.done & jnp.take_along_axis(broken, branch.node[:, None], axis=1)[:, 0],
        )


class _Kept(NamedTuple):
    """The node that a row keeps, with what is above it and what its next token is drawn from."""

    node: Int[Array, ""]
    depth: Int[Array, ""]
    path: Int[Array, " P"]
    residual: Float[Array, " V"]


class _Branch(NamedTuple):
    """The nodes from the root to the one at hand, and what is left of each."""

    node: Int[Array, ""]
    depth: Int[Array, ""]
    path: Int[Array, " P"]
    ratio: Float[Array, " P"]
    """alpha: the probability with which a node passes, if nothing below it has."""
    p: Float[Array, "P V"]
    """The target's distributions, less what was tested and refused."""
    q: Float[Array, "P V"]
    """The distributions that the next child of each is drawn from."""
    gone: Bool[Array, " N"]
    """The nodes that were refused."""
    passed: Bool[Array, ""]


def _traverse(
    tree: Tree, p: Float[Array, "N V"], broken: Bool[Array, " N"], uniforms: Float[Array, " N"]
) -> _Kept:
    """Goes through the tree of one row (B is mapped) until a node passes; the root does."""
    assert tree.q is not None, "it was checked"
    rows = jnp.arange(p.shape[0]) if tree.q_row is None else tree.q_row
    all_q = tree.q
    nodes, levels = jnp.arange(p.shape[0], dtype=jnp.int32), jnp.arange(tree.depth + 1)

    def draw_from(node: Int[Array, ""]) -> Float[Array, " V"]:
        # A node without children needs no row, and may have none.
        return all_q[jnp.minimum(rows[node], all_q.shape[0] - 1)].astype(p.dtype)

    def step(now: _Branch) -> _Branch:
        below = (tree.parents == now.node) & tree.valid & ~now.gone & (nodes > 0)
        down = below.any() & ~broken[now.node] & (now.depth < tree.depth)
        passes = ~down & ((uniforms[now.node] < now.ratio[now.depth]) | (now.depth == 0))
        above = jnp.maximum(now.depth - 1, 0)
        child = below.argmax().astype(jnp.int32)
        # One level changes: the child's, or the one above a node that is refused.
        level = jnp.where(down, now.depth + 1, jnp.where(passes, now.depth, above))
        entered = _enter(now, tree.tokens[child]), p[child], draw_from(child)
        refused = _refuse(now, above, tree.tokens[now.node])
        same = now.ratio[level], now.p[level], now.q[level]
        ratio, of_p, of_q = jax.tree.map(
            lambda *values: jnp.where(down, values[0], jnp.where(passes, *values[1:])),
            entered,
            same,
            refused,
        )
        node = jnp.where(down, child, now.path[level])
        return _Branch(
            node=node,
            depth=level,
            path=now.path.at[level].set(node),
            ratio=now.ratio.at[level].set(ratio),
            p=now.p.at[level].set(of_p),
            q=now.q.at[level].set(of_q),
            gone=now.gone | ((nodes == now.node) & ~down & ~passes),
            passed=passes,
        )

    zero = jnp.zeros((), jnp.int32)
    start = _Branch(
        node=zero,
        depth=zero,
        path=jnp.zeros(levels.shape, jnp.int32),
        ratio=jnp.ones(levels.shape, p.dtype),
        p=jnp.broadcast_to(p[0], (len(levels), p.shape[1])),
        q=jnp.broadcast_to(draw_from(zero), (len(levels), p.shape[1])),
        gone=jnp.zeros(nodes.shape, bool),
        passed=jnp.zeros((), bool),
    )
    start = vary(start, p, all_q, uniforms, tree.tokens)
    last = jax.lax.while_loop(lambda now: ~now.passed, step, start)
    return _Kept(last.node, last.depth, last.path, last.p[last.depth])


def _enter(now: _Branch, token: Int[Array, ""]) -> Float[Array, ""]:
    """Returns alpha of a child with some token: min(alpha p(x) / q(x), 1)."""
    target, drawn = now.ratio[now.depth] * now.p[now.depth, token], now.q[now.depth, token]
    enough = target >= drawn  # never divides where the quotient would be cut to 1
    return jnp.where(enough, drawn > 0, target / jnp.where(enough, 1.0, drawn)).astype(target.dtype)


def _refuse(
    now: _Branch, above: Int[Array, ""], token: Int[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, " V"], Float[Array, " V"]]:
    """Returns alpha, p and q of the node above one that was refused."""
    ratio, p, q = now.ratio[above], now.p[above], now.q[above]
    gone = jnp.arange(p.shape[0]) == token
    surplus = jnp.maximum(ratio * p - q, 0.0)
    surplus = jnp.where(gone, 0.0, surplus)  # as it is for a refused child, but for rounding
    mass, short = surplus.sum(), 1 - ratio
    # Below a certain node something passes for certain: that nothing did is rounding.
    ratio = jnp.where(short > 0, mass / jnp.where(short > 0, mass + short, 1.0), 1.0)
    residual = samplings.normalise(surplus, p)
    return ratio, residual, samplings.normalise(jnp.where(gone, 0.0, q), q)
