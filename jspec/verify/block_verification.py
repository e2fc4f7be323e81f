"""Block verification: judging a chain as a whole keeps more tokens."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import sampling as samplings
from jspec._validate.errors import InputError
from jspec._xla.manual_axes import vary
from jspec.types import Frame, Tree, Verdict
from jspec.verify import sequence_level


@dataclass(frozen=True)
class BlockVerification:
    """A `Verifier` of sampled chains (Sun et al. 2024, Algorithm 2).

    Every drafted token is tested, and the last that passes is the last that is kept: a token that
    the target likes less is made up for by one before it that the target likes more. Where the
    chain ends may depend on its tokens, never on the one that would come next.

    Example:
        >>> import jspec
        >>> jspec.schemes.BLOCK.verifier == jspec.BlockVerification()
        True
    """

    def verdict(self, tree: Tree, logits: Float[Array, "B N V"], frame: Frame) -> Verdict:
        """Decides how much of the chain is kept.

        Args:
            tree: the draft: a chain that says which distributions it was drawn from.
            logits: the target's, at every node.
            frame: keys and sampling of the round; its keys are not consumed.

        Raises:
            InputError: if the tree may branch, or has no distributions.
        """
        if tree.width != 1:
            raise InputError(
                f"block verification judges chains and a node of this tree has up to {tree.width} "
                "children; draft a chain, or take a node rule such as jspec.rules.recursive"
            )
        if tree.q is None:
            raise InputError(
                "block verification needs the distributions q that the chain was drawn from, "
                "and this "
                "drafter reports none; take a drafter that samples, or rule=jspec.rules.coupled"
            )
        path = _path(tree)
        drafted = jnp.take_along_axis(tree.tokens, path[:, 1:], axis=1)
        scored = jnp.take_along_axis(logits, path[..., None], axis=1)
        p, uniforms = sequence_level.distributions_and_uniforms(scored, frame, tree.depth)
        q = _distributions(tree.q, tree.q_row, path[:, :-1])
        length, broken = tree.valid.sum(-1) - 1, ~samplings.is_distribution(scored)
        return judge(path, drafted, length, broken, p, q, uniforms, frame)


def judge(
    path: Int[Array, "B P"],
    drafted: Int[Array, "B P-1"],
    length: Int[Array, " B"],
    broken: Bool[Array, "B P"],
    p: Float[Array, "B P V"],
    q: Float[Array, "B P-1 V"],
    uniforms: Float[Array, "B P-1"],
    frame: Frame,
) -> Verdict:
    """Returns block verification of the first `length` tokens that were drafted along a path.

    A node that is `broken`, without a distribution, ends them, as it ends the path of
    `TreeVerifier`. Node ids behind the end are in bounds, and never read.
    """
    length = jnp.where(frame.done, 0, length)
    length = jnp.minimum(length, jnp.where(broken.any(-1), broken.argmax(-1), length))
    accept, residual = jax.vmap(acceptance)(p, q, drafted, length)

    steps = jnp.arange(path.shape[1], dtype=jnp.int32)
    accepted = jnp.where(uniforms < accept, steps[1:], 0).max(-1, initial=0)
    rest = jnp.take_along_axis(residual, accepted[:, None, None], axis=1)[:, 0]
    return Verdict(
        path=jnp.where(steps <= accepted[:, None], path, 0),
        path_lengths=accepted + 1,
        bonus=sequence_level.next_token(accepted, rest, frame),
        failed=~frame.done & jnp.take_along_axis(broken, accepted[:, None], axis=1)[:, 0],
    )


def acceptance(
    p: Float[Array, "P V"],
    q: Float[Array, "P-1 V"],
    drafted: Int[Array, " P-1"],
    length: Int[Array, ""],
) -> tuple[Float[Array, " P-1"], Float[Array, "P V"]]:
    """Returns accept and residual: token i passes with accept[i - 1]."""
    steps, tokens = jnp.arange(p.shape[0]), drafted[:, None]
    target = jnp.take_along_axis(p[:-1], tokens, axis=1)[:, 0]
    drawn = jnp.take_along_axis(q, tokens, axis=1)[:, 0].astype(p.dtype)

    def multiply(ratio, token):
        target, drawn = token
        target = ratio * target
        enough = target >= drawn  # never divides where the quotient would be cut to 1
        ratio = jnp.where(enough, drawn > 0, target / jnp.where(enough, 1.0, drawn))
        return ratio, ratio

    _, ratios = jax.lax.scan(multiply, vary(jnp.ones((), p.dtype), p, q), (target, drawn))
    before = jnp.concatenate([jnp.ones(1, p.dtype), ratios])[:-1]
    surplus = jnp.concatenate([jnp.maximum(before[:, None] * p[:-1] - q, 0.0), p[-1:]])
    residual = jnp.where(steps[:, None] < length, surplus, p)
    mass = residual.sum(-1)
    # At p_i = 1 the test is certain. It is 0/0 if the draft's next distribution is the target's:
    # then the next token passes, and this test does not matter.
    short = 1 - ratios
    passes = jnp.where(short > 0, mass[1:] / jnp.where(short > 0, mass[1:] + short, 1.0), 1.0)
    accept = jnp.where(steps[1:] == length, ratios, jnp.where(steps[1:] < length, passes, 0.0))
    return accept, samplings.normalise(residual, p)


def _path(tree: Tree) -> Int[Array, "B P"]:
    """Returns node ids along the chain; behind its end they are in bounds, and never read."""
    num = tree.tokens.shape[1]
    # Parents come before their children, so ids grow along the chain.
    present = jnp.where(tree.valid, jnp.arange(num, dtype=jnp.int32), num)
    return jnp.minimum(jnp.sort(present)[:, : tree.depth + 1], num - 1)


def _distributions(
    q: Float[Array, "B Q V"], q_row: Int[Array, "B N"] | None, path: Int[Array, "B P-1"]
) -> Float[Array, "B P-1 V"]:
    """Returns the distributions that the chain's tokens were drawn from."""
    rows = path if q_row is None else jnp.take_along_axis(q_row, path, axis=1)
    # Nodes behind the chain's end need none, and may have none.
    return jnp.take_along_axis(q, jnp.minimum(rows, q.shape[1] - 1)[..., None], axis=1)
