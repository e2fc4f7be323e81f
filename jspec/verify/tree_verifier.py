"""Tree verification: descend while the rule accepts a child, then draw per token."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import sampling as samplings
from jspec import tree as trees
from jspec._xla.manual_axes import vary
from jspec.protocols import NodeRule
from jspec.types import Frame, Tree, Verdict

UNIFORMS = 0
"""The purpose of the verifier's own randomness, see `sampling.fork`."""


@dataclass(frozen=True)
class TreeVerifier:
    """A `Verifier` that applies one node rule from the root downwards.

    It takes as many steps as the accepted path is long, and computes the distributions of the
    nodes that it visits alone. Greedy verdicts take no steps: the argmax of all nodes costs less.

    Args:
        rule: such as `jspec.rules.coupled`.

    Example:
        >>> import jspec
        >>> str(jspec.TreeVerifier(jspec.rules.recursive))
        'recursive'
    """

    rule: NodeRule

    def __str__(self) -> str:
        return getattr(self.rule, "__name__", repr(self.rule))

    def verdict(self, tree: Tree, logits: Float[Array, "B N V"], frame: Frame) -> Verdict:
        """Decides on a path.

        Args:
            tree: the draft.
            logits: the target's, at every node.
            frame: keys and sampling of the round; its keys are not consumed.
        """
        greedy = frame.sampling is None or frame.keys is None
        if greedy and getattr(self.rule, "by_token", False):
            return _where_tokens_match(tree, logits, frame)
        return self._walk(tree, logits, frame)

    def _walk(self, tree: Tree, logits: Float[Array, "B N V"], frame: Frame) -> Verdict:
        """Returns the verdict from the root downwards, a node of each row at a time."""
        batch = tree.tokens.shape[0]
        zeros = jnp.zeros(batch, jnp.int32)
        visit = jax.vmap(self._visit, in_axes=(0, 0, 0, 0, None))

        def descend(carry):
            verdict, node, going, depth = carry
            node_logits = jnp.take_along_axis(logits, node[:, None, None], axis=1)[:, 0]
            probs, noise, uniforms = _distribution_and_noise(node_logits, tree.width, depth, frame)
            children, tokens, accept, residual = visit(tree, node, probs, noise, depth)
            accepted = uniforms < accept
            passes = accepted.any(-1)
            child = jnp.take_along_axis(children, _first(tokens, accepted)[:, None], -1)[:, 0]
            bad = going & ~samplings.is_distribution(node_logits)
            down = going & passes & ~bad
            drawn = samplings.argmax(jnp.log(residual) + noise)
            here = down[:, None] & (jnp.arange(tree.depth + 1) == depth + 1)[None]
            verdict = Verdict(
                path=jnp.where(here, child[:, None], verdict.path),
                path_lengths=verdict.path_lengths + down.astype(jnp.int32),
                bonus=jnp.where(going & ~down, drawn, verdict.bonus),
                failed=verdict.failed | bad,
            )
            return verdict, jnp.where(down, child, node), down, depth + 1

        def walk(carry):
            return jax.lax.while_loop(lambda carry: carry[2].any(), descend, carry)

        start = Verdict(
            path=jnp.zeros((batch, tree.depth + 1), jnp.int32),
            path_lengths=zeros + 1,
            bonus=zeros,
            failed=zeros > 0,
        )
        carry = (*vary((start, zeros, ~frame.done), tree, logits, frame), jnp.int32(0))
        if tree.depth == 0:  # one visit is all
            return descend(carry)[0]
        # The root is always visited. A GPU's host waits for each condition that it asks for, so
        # there the first one is spared; the program is larger for it.
        return jax.lax.platform_dependent(
            carry, cuda=lambda carry: walk(descend(carry)), default=walk
        )[0]

    def _visit(
        self,
        tree: Tree,
        node: Int[Array, ""],
        probs: Float[Array, " V"],
        noise: Float[Array, " V"],
        depth: Int[Array, ""],
    ) -> tuple[Int[Array, " K"], Int[Array, " K"], Float[Array, " K"], Float[Array, " V"]]:
        """Visits one node of one row (B is mapped): children, their tokens, the rule's result."""
        last = tree.tokens.shape[0] - 1
        children = trees.children(tree.parents, tree.valid, node, tree.width)
        # Never below what the tree declares: the path has no room for more.
        valid = (children <= last) & (depth < tree.depth)
        children = jnp.minimum(children, last)
        q = None
        if tree.q is not None:
            q = tree.q[node if tree.q_row is None else tree.q_row[node]]
        tokens = jnp.where(valid, tree.tokens[children], -1)
        accept, residual = self.rule(probs, q, tree.tokens[children], valid, noise)
        return children, tokens, jnp.where(valid, accept, 0.0), residual


def _where_tokens_match(tree: Tree, logits: Float[Array, "B N V"], frame: Frame) -> Verdict:
    """Returns the greedy verdict of rules by tokens, for all nodes at once."""
    best, good = samplings.best_token(logits)
    nodes = jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)
    above = jnp.maximum(tree.parents, 0)
    siblings = (tree.parents[:, :, None] == tree.parents[:, None, :]) & tree.valid[:, None, :]
    earlier = siblings & (nodes[None] < nodes[:, None])[None]
    # Equal siblings are one node, and a node has no more children than the tree declares.
    twin = (earlier & (tree.tokens[:, :, None] == tree.tokens[:, None, :])).any(-1)
    among = earlier.sum(-1) < tree.width
    agrees = jnp.take_along_axis(best, above, 1) == tree.tokens
    passes = agrees & tree.valid & among & ~twin & jnp.take_along_axis(good, above, 1)
    mask = trees.ancestors(tree)
    # A node that is deeper than the tree declares does not see the root.
    accepted = ((passes | (nodes == 0)[None])[:, None, :] | ~mask).all(-1) & mask[..., 0]
    accepted &= ~frame.done[:, None] | (nodes == 0)[None]
    counts = accepted.sum(-1, dtype=jnp.int32)
    last = jnp.where(accepted, nodes, 0).max(-1, keepdims=True)
    level = mask.sum(-1, dtype=jnp.int32) - 1
    steps = jnp.arange(tree.depth + 1, dtype=jnp.int32)
    path = jnp.where(accepted[:, None] & (level[:, None] == steps[None, :, None]), nodes, 0).max(-1)
    bad = ~jnp.take_along_axis(good, last, 1)[:, 0]
    return Verdict(
        path=path,
        path_lengths=counts,
        bonus=jnp.where(frame.done, 0, jnp.take_along_axis(best, last, 1)[:, 0]),
        failed=bad & ~frame.done,
    )


def _distribution_and_noise(
    logits: Float[Array, "B V"], width: int, depth: Int[Array, ""], frame: Frame
) -> tuple[Float[Array, "B V"], Float[Array, "B V"], Float[Array, "B K"]]:
    """Returns the distribution, the position's noise and a uniform per child."""
    batch, size = logits.shape
    if frame.sampling is None or frame.keys is None:
        probs = samplings.one_hot(samplings.argmax(logits), size)
        return probs, jnp.zeros_like(probs), jnp.zeros((batch, width))
    keys, positions = frame.keys, frame.positions + depth
    # Noise takes a pass over the vocabulary, so it waits until some row draws.
    draws = (jnp.asarray(frame.sampling.temperature) > 0) & ~frame.done
    noise = jax.lax.cond(
        draws.any(),
        lambda: vary(samplings.gumbel(keys, positions, size), logits),
        lambda: vary(jnp.zeros((batch, size), jnp.float32), keys, positions, logits),
    )
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (width,), jnp.float32))(
        samplings.fork(frame.keys, positions, UNIFORMS)
    )
    return samplings.probabilities(logits, frame.sampling), noise, uniforms


def _first(tokens: Int[Array, "B K"], passes: Bool[Array, "B K"]) -> Int[Array, " B"]:
    """Returns the first child with the taken token: equal siblings are one node."""
    token = jnp.take_along_axis(tokens, passes.argmax(-1)[:, None], -1)
    return (tokens == token).argmax(-1)
