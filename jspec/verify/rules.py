"""Node rules: acceptance probabilities of a node's drafted children.

Losslessness of a rule is an identity that tests check by enumeration: summed over the draws of
the children, accepted mass plus left-over mass times residual is p.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.errors import InputError
from jspec._xla.manual_axes import vary
from jspec.sampling import argmax, normalise, one_hot

NodeDecision = tuple[Float[Array, " K"], Float[Array, " V"]]
"""The probability with which each child is accepted, and the residual distribution."""
Rule = TypeVar("Rule", bound=Callable[..., NodeDecision])


def _by_token(rule: Rule) -> Rule:
    """Marks a rule that accepts just the target's token, see `jspec.NodeRule`."""
    rule.__dict__["by_token"] = True
    return rule


@_by_token
def deterministic_proposal(
    p: Float[Array, " V"],
    q: Float[Array, " V"] | None,
    children: Int[Array, " K"],
    valid: Bool[Array, " K"],
    noise: Float[Array, " V"],
) -> NodeDecision:
    """Applies the rule for deterministic proposals: draw from p, keep a drafted token.

    Child k is accepted with p(x_k) / (1 - p of the earlier ones); what is left is p without the
    children. A token that occurs twice counts once. Lossless for any children that do not depend
    on the call's key: with a hot start or a script from an earlier run, give each call its own.

    Example:
        >>> p = jnp.array([0.5, 0.25, 0.25])
        >>> accept, residual = deterministic_proposal(
        ...     p, None, jnp.array([0, 1]), jnp.ones(2, bool), jnp.zeros(3)
        ... )
        >>> accept.tolist(), residual.tolist()  # a half of all, then a half of the rest
        ([0.5, 0.5], [0.0, 0.0, 1.0])
    """
    del q, noise
    order = jnp.arange(children.shape[0])
    before = order[None] < order[:, None]
    earlier = (children[:, None] == children[None]) & before & valid[None]
    mass = jnp.where(valid & ~earlier.any(-1), p[children], 0.0)
    rest = p.at[jnp.where(valid, children, p.shape[0])].set(0.0, mode="drop")
    # Sums of what remains, not 1 - sums of what is gone: nothing cancels, and the last child of
    # an exhausted distribution is accepted with exactly 1.
    remaining = jnp.cumsum(mass[::-1])[::-1] + rest.sum()
    accept = jnp.where(mass > 0, mass / jnp.where(remaining > 0, remaining, 1.0), 0.0)
    return accept, normalise(rest, p)


@_by_token
def coupled(
    p: Float[Array, " V"],
    q: Float[Array, " V"] | None,
    children: Int[Array, " K"],
    valid: Bool[Array, " K"],
    noise: Float[Array, " V"],
) -> NodeDecision:
    """Applies `deterministic_proposal` to the target's distribution given the position's noise.

    That distribution is one certain token, argmax(log p + noise), a draw from p (Gumbel-max) that
    no draft can influence: lossless for any proposal, and the same tokens with and without
    speculation.

    Example:
        >>> p, noise = jnp.array([0.7, 0.2, 0.1]), jnp.array([0.0, 3.0, 0.0])
        >>> accept, _ = coupled(p, None, jnp.array([0, 1]), jnp.ones(2, bool), noise)
        >>> accept.tolist()  # the noise has chosen token 1
        [0.0, 1.0]
    """
    del q
    token = argmax(jnp.log(p) + noise)
    hits = valid & (children == token)
    first = hits & (jnp.cumsum(hits) == 1)  # a token that occurs twice counts once
    return first.astype(p.dtype), one_hot(token, p.shape[0])


def recursive(
    p: Float[Array, " V"],
    q: Float[Array, " V"] | None,
    children: Int[Array, " K"],
    valid: Bool[Array, " K"],
    noise: Float[Array, " V"],
) -> NodeDecision:
    """Decides on children drawn from q one after the other, without replacement.

    Keep x with min(1, p(x) / q(x)); when refused p <- norm[p - q]^+, and q loses x. Recursive
    rejection sampling (Jeon et al. 2024, Algorithm 6 and Theorem 3.1), which is Sequoia's rule and
    DySpec's (Algorithm 3). Where q runs out, as a filtered distribution does, the last p is what is
    left. A child may be dropped because of earlier siblings, never because of its
    own token.

    Example:
        >>> p, q = jnp.array([0.5, 0.5, 0.0]), jnp.array([0.25, 0.25, 0.5])
        >>> accept, residual = recursive(p, q, jnp.array([2]), jnp.ones(1, bool), jnp.zeros(3))
        >>> accept.tolist(), residual.tolist()
        ([0.0], [0.5, 0.5, 0.0])
    """
    del noise
    return _one_by_one(p, _report(q), children, valid, lambda q, gone: jnp.where(gone, 0.0, q))


def multi_round(
    p: Float[Array, " V"],
    q: Float[Array, " V"] | None,
    children: Int[Array, " K"],
    valid: Bool[Array, " K"],
    noise: Float[Array, " V"],
) -> NodeDecision:
    """Decides on children drawn from q independently, equal ones kept.

    Keep x with min(1, p(x) / q(x)); when refused p <- norm[p - q]^+, and q stays (multi-round
    speculative sampling; SpecInfer, Miao et al. 2023).

    Example:
        >>> p, q = jnp.array([0.5, 0.5]), jnp.array([1.0, 0.0])
        >>> accept, residual = multi_round(p, q, jnp.array([0, 0]), jnp.ones(2, bool), jnp.zeros(2))
        >>> accept.tolist(), residual.tolist()
        ([0.5, 0.0], [0.0, 1.0])
    """
    del noise
    return _one_by_one(p, _report(q), children, valid, lambda q, gone: q)


def k_seq(
    p: Float[Array, " V"],
    q: Float[Array, " V"] | None,
    children: Int[Array, " K"],
    valid: Bool[Array, " K"],
    noise: Float[Array, " V"],
) -> NodeDecision:
    """Applies the rule for independent children: keep with min(1, p / (gamma q)).

    K-SEQ (SpecTr, Sun et al. 2023). With beta = sum min(q, p / gamma), the probability of one
    child, and K valid children, gamma is the least with (1 - (1 - beta)^K) / beta <= gamma. The
    left side is 1 + (1 - beta) + .. + (1 - beta)^(K - 1), the mean number of children tried: a sum
    in which nothing cancels and nothing divides by 0. The residual is norm[p - tried min(q, p /
    gamma)].

    Example:
        >>> p = q = jnp.array([0.5, 0.5])
        >>> accept, _ = k_seq(p, q, jnp.array([1]), jnp.ones(1, bool), jnp.zeros(2))
        >>> accept.tolist()
        [1.0]
    """
    del noise
    q = _report(q).astype(p.dtype)
    order, num = jnp.arange(children.shape[0]), valid.sum().astype(p.dtype)

    def attempts(gamma):
        overlap = jnp.minimum(q, p / gamma)
        refused = jnp.maximum(1 - overlap.sum(), 0.0)
        return overlap, jnp.where(order < num, refused**order, 0.0).sum()

    def halve(_, bounds):
        low, high = bounds  # high is enough, and so is every gamma above it
        middle = (low + high) / 2
        enough = attempts(middle)[1] <= middle
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    # K is always enough. Any gamma that is enough is lossless and the least keeps most children,
    # so that it need not be found exactly: as many halvings as the type has digits will do.
    bounds = jnp.ones_like(num), jnp.maximum(num, 1.0)
    _, gamma = jax.lax.fori_loop(0, jnp.finfo(p.dtype).nmant + 1, halve, vary(bounds, p, q))
    overlap, tried = attempts(gamma)
    accept = jnp.where(valid, _ratio(overlap[children], q[children]), 0.0)
    return accept, normalise(jnp.maximum(p - tried * overlap, 0.0), p)


def _one_by_one(
    p: Float[Array, " V"],
    q: Float[Array, " V"],
    children: Int[Array, " K"],
    valid: Bool[Array, " K"],
    after: Callable[[Float[Array, " V"], Bool[Array, " V"]], Float[Array, " V"]],
) -> NodeDecision:
    """Applies rejection sampling child by child, each from its own distribution."""

    def visit(k, carry):
        accept, p, q = carry
        child, of_p, of_q = children[k], p.sum(), q.sum()
        # q knows every child that was drawn from it; one that it does not know changes nothing.
        drawn = valid[k] & (q[child] > 0)
        probability = jnp.where(drawn, _ratio(p[child] * of_q, q[child] * of_p), 0.0)
        gone = jnp.arange(p.shape[0]) == child
        residual = jnp.maximum(p - q * (of_p / jnp.where(drawn, of_q, 1.0)), 0.0)
        residual = jnp.where(gone, 0.0, residual)  # as it is for a refused child, but for rounding
        p = jnp.where(drawn & (residual > 0).any(), residual, p)
        return accept.at[k].set(probability), p, jnp.where(drawn, after(q, gone), q)

    # A node has few children for the width of most trees, and each costs a pass over V.
    last = jnp.where(valid, jnp.arange(1, children.shape[0] + 1), 0).max(initial=0)
    start = jnp.zeros(children.shape, p.dtype), p, q.astype(p.dtype)
    accept, rest, _ = jax.lax.fori_loop(0, last, visit, vary(start, p, q))
    return accept, jnp.where(last > 0, normalise(rest, p), p)


def _ratio(target: Float[Array, "*K"], drawn: Float[Array, "*K"]) -> Float[Array, "*K"]:
    """Returns min(1, target / drawn); 0 where nothing is drawn."""
    enough = target >= drawn
    return jnp.where(
        enough, (drawn > 0).astype(drawn.dtype), target / jnp.where(enough, 1.0, drawn)
    )


def _report(q: Float[Array, " V"] | None) -> Float[Array, " V"]:
    if q is None:
        raise InputError(
            "rule needs the distribution q that the children were drawn from, and this drafter "
            "reports none; take a drafter that samples its children, or a rule that asks for no "
            "distribution: jspec.rules.coupled or jspec.rules.deterministic_proposal"
        )
    return q
