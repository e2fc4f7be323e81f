"""Child samplers: ways to draw the children of a node, each for a rule, see `jspec.schemes`."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec import _struct as struct
from jspec import sampling as samplings
from jspec._validate import seeds
from jspec._validate.errors import InputError
from jspec.arrays.top_k import largest, top_k
from jspec.types import Frame, Sampling

_CHILDREN = 1
"""The purpose of the drafters' own randomness, see `sampling.fork`."""

_LAST = 1e6
"""The amount taken from scores of filtered tokens, to put them below all others."""


@struct.dataclass
class ChildDraws:
    """Children of M nodes of each row, in the order in which they were drawn."""

    tokens: Int[Array, "B M K"]
    scores: Float[Array, "B M K"]
    """The scores that the children were drawn by, falling; -inf where no token was left to draw."""
    child_probs: Float[Array, "B M K"]
    """The draft's probability of each child."""
    probs: Float[Array, "B M V"]
    """The draft's distribution of the probabilities; never computed if unread."""
    q: Float[Array, "B M V"] | None
    """The distribution that the children are honest draws from; None if they are point masses."""


class ScoredTokens(NamedTuple):
    """Some tokens of a vocabulary, in the order in which logits are of them."""

    ids: Int[Array, " d"]
    vocab_size: int


class ChildSampler(Protocol):
    """A way to draw the children of a node. It belongs to a rule, see `jspec.schemes`."""

    def __call__(
        self,
        logits: Float[Array, "B M V"],
        sampling: Sampling | None,
        frame: Frame,
        level: Int[Array, ""] | int,
        size: int,
    ) -> ChildDraws:
        """Draws `size` children of each node from the draft's logits."""
        ...


def coupled(
    logits: Float[Array, "B M V"],
    sampling: Sampling | None,
    frame: Frame,
    level: Int[Array, ""] | int,
    size: int,
    among: ScoredTokens | None = None,
) -> ChildDraws:
    """Draws the K largest of log q + G, with the noise G that will decide the target's token.

    The target takes argmax(log p + G): the better q resembles p, the surer that token is among
    these. Temperature T divides logits, so that argmax is the one of logits + T G: the scores are
    in that unit, which holds at T = 0 too. They are the *target's* temperature and filters, since
    the noise is; tokens that the filters take from q come last. `sampling` tells the probabilities
    alone.

    Logits may be of few tokens, `among` all of those that there is noise for. The candidates'
    tokens are then their places among the few.
    """
    scores = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    if (target := frame.sampling) is not None and frame.keys is not None:
        vocab_size = logits.shape[-1] if among is None else among.vocab_size
        noise = samplings.gumbel(frame.keys, frame.positions + level, vocab_size)
        if among is not None:
            noise = noise[:, among.ids]
        temperature = jnp.asarray(target.temperature)[:, None]

        def last(free: Float[Array, "B M V"]) -> Float[Array, "B M V"]:
            zero = samplings.node_probabilities(logits, target) == 0
            barred = zero & (temperature > 0)[..., None]
            return jnp.where(barred, scores - _LAST, free)

        cut = samplings.has_filter(target, logits.shape[-1]).any()
        scores = jax.lax.cond(cut, last, lambda free: free, scores + (temperature * noise)[:, None])
    scores, tokens = top_k(scores, size)
    q = samplings.node_probabilities(logits, sampling or frame.sampling or Sampling())
    return _candidates(tokens, scores, q, sampled=False)


def gumbel_list(
    logits: Float[Array, "B M V"],
    sampling: Sampling | None,
    frame: Frame,
    level: Int[Array, ""] | int,
    size: int,
) -> ChildDraws:
    """Draws K independent tokens from q, each by a noise of its own: Gumbel-max list sampling.

    Rowan, Phan and Khisti 2025, arXiv:2506.05632. The target's token is decided by the largest of
    the K noises at each token, less log K, which is Gumbel noise again. Here that is the noise of
    plain decoding, and the K are drawn given their largest, so that the tokens are those of plain
    decoding. Children may be equal. `coupled` ranks by the deciding noise itself and keeps a child
    more often; this is the published way, to compare with.
    """
    draft_sampling = sampling or frame.sampling or Sampling()
    probs = samplings.node_probabilities(logits, draft_sampling)
    batch, vocab = len(frame.root), logits.shape[-1]
    shape, row_shape = (batch, size, vocab), (batch, 1, vocab)
    noises = jnp.zeros(shape)
    if frame.keys is not None:
        largest = samplings.gumbel(frame.keys, frame.positions + level, vocab) + math.log(size)
        # Each token's largest noise is any of the K with the same probability.
        level_keys = jax.vmap(jax.random.fold_in)(
            samplings.fork(frame.keys, frame.positions, _CHILDREN), jnp.full(batch, level)
        )
        holder, below = jnp.moveaxis(
            jax.vmap(lambda key: jax.random.split(key, 2))(level_keys), 1, 0
        )
        holds = jax.vmap(lambda key: jax.random.randint(key, (vocab,), 0, size))(holder)
        free = jax.vmap(lambda key: jax.random.exponential(key, shape[1:], jnp.float32))(below)
        # A Gumbel variable that is at most b: -log(exp(-b) + E), with E exponential.
        bounded = -jnp.log(jnp.exp(-largest[:, None]) + free)
        is_largest = holds[:, None] == jnp.arange(size)[:, None]
        noises = jnp.where(is_largest, largest.reshape(row_shape), bounded)
    scores = jnp.log(probs)[:, :, None] + noises[:, None]
    tokens = samplings.argmax(scores)
    log_weight = jnp.where(probs.max(-1, keepdims=True) > 0, 0.0, -jnp.inf)
    return _candidates(tokens, jnp.broadcast_to(log_weight, tokens.shape), probs, sampled=False)


def without_replacement(
    logits: Float[Array, "B M V"],
    sampling: Sampling | None,
    frame: Frame,
    level: Int[Array, ""] | int,
    size: int,
) -> ChildDraws:
    """Draws K tokens from q without replacement, by the Gumbel-top-k trick (Kool et al. 2019).

    As RSD (Jeon et al. 2024, Algorithm 4); the exponential race of Sequoia is the same in
    distribution. Fewer than K where q has fewer tokens.
    """
    probs = samplings.node_probabilities(logits, _find_sampling(sampling, frame))
    groups = Groups(probs.shape[-1], size)
    noise = _noise(frame, level, (probs.shape[1], groups.noise))
    scores, tokens = groups.top(probs, noise)
    return _candidates(tokens, scores, probs, sampled=True)


def with_replacement(
    logits: Float[Array, "B M V"],
    sampling: Sampling | None,
    frame: Frame,
    level: Int[Array, ""] | int,
    size: int,
) -> ChildDraws:
    """Draws K independent tokens from q; equal ones are kept, since the rules count them."""
    probs = samplings.node_probabilities(logits, _find_sampling(sampling, frame))

    groups = Groups(probs.shape[-1], 1)
    noise = _noise(frame, level, (probs.shape[1], size, groups.noise))
    _, tokens = groups.top(probs[:, :, None], noise)
    tokens = tokens[..., 0]
    # Logits that are not numbers leave no distribution, and nothing to draw.
    scores = jnp.broadcast_to(
        jnp.where(probs.max(-1, keepdims=True) > 0, 0.0, -jnp.inf), tokens.shape
    )
    return _candidates(tokens, scores, probs, sampled=True)


@dataclass(frozen=True)
class Groups:
    """Gumbel-top-k (Kool et al. 2019) without noise for all of V: a vocabulary cut into groups.

    Top down, as stochastic beam search goes down a tree: the maximum over a group of tokens is
    log of its mass + one Gumbel; the K largest lie in the K groups of largest maxima; inside
    those the noise is drawn given the maximum. V/g + K g Gumbels instead of V, the same
    distribution.

    Args:
        vocab_size: V.
        size: K.
    """

    vocab_size: int
    size: int

    @property
    def width(self) -> int:
        """The number g of tokens in a group: sqrt(V / K) costs least."""
        return 1 << max(1, round(math.log2(math.sqrt(self.vocab_size / self.size))))

    @property
    def number(self) -> int:
        return -(-self.vocab_size // self.width)

    @property
    def searched(self) -> int:
        """The number of groups whose tokens are looked at."""
        return min(self.size, self.number)

    @property
    def noise(self) -> int:
        """The number of Gumbels that a draw needs."""
        return self.number + self.searched * self.width

    def top(
        self, probs: Float[Array, "*#S V"], noise: Float[Array, "*S G"]
    ) -> tuple[Float[Array, "*S K"], Int[Array, "*S K"]]:
        """Returns the K largest of log distribution + Gumbel noise, falling, and their tokens."""
        padding = [(0, 0)] * (probs.ndim - 1) + [(0, self.number * self.width - self.vocab_size)]
        grouped = jnp.pad(probs, padding).reshape(*probs.shape[:-1], self.number, self.width)
        between, within = noise[..., : self.number], noise[..., self.number :]
        tops, best = largest(jnp.log(grouped.sum(-1)) + between, self.searched)
        inside = jnp.log(jnp.take_along_axis(grouped, best[..., None], axis=-2))
        inside = inside + within.reshape(inside.shape)
        inside = truncate(inside, inside.max(-1, keepdims=True), tops[..., None])
        scores, place = largest(inside.reshape(*noise.shape[:-1], -1), self.size)
        group = jnp.take_along_axis(best, place // self.width, axis=-1)
        # Where the distribution runs out, what is drawn last may lie in the padding.
        tokens = jnp.minimum(group * self.width + place % self.width, self.vocab_size - 1)
        return scores, tokens


def truncate(
    values: Float[Array, "*S K"], largest: Float[Array, "*S 1"], bound: Float[Array, "*S 1"]
) -> Float[Array, "*S K"]:
    """Conditions Gumbel values on the maximum `bound`, from free ones of maximum `largest`.

    -log(exp(-bound) - exp(-largest) + exp(-values)) without overflow (Kool et al. 2019, app. B.3).
    """
    gap = values - jnp.where(jnp.isfinite(largest), largest, 0.0)
    below = jnp.where(gap > -0.7, jnp.log(-jnp.expm1(gap)), jnp.log1p(-jnp.exp(gap)))
    v = bound - values + below
    shifted = bound - jnp.maximum(v, 0.0) - jnp.log1p(jnp.exp(-jnp.abs(v)))
    return jnp.where(values > -jnp.inf, shifted, -jnp.inf)


def _noise(frame: Frame, level: Int[Array, ""] | int, shape: tuple[int, ...]) -> Array:
    """Returns the drafter's own Gumbels [B, *shape], others at each level of each round."""
    keys = frame.keys
    if keys is None:  # greedy: whatever is drawn, the tokens are the same
        keys = samplings.row_keys(seeds.any_key(), jnp.arange(len(frame.root)))
    keys = samplings.fork(keys, frame.positions, _CHILDREN)

    def draw(key):
        level_key = jax.random.fold_in(key, level)
        return jax.random.gumbel(level_key, shape, jnp.float32, mode="high")

    return jax.vmap(draw)(keys)


def _candidates(
    tokens: Int[Array, "B M K"],
    scores: Float[Array, "B M K"],
    probs: Float[Array, "B M V"],
    sampled: bool,
) -> ChildDraws:
    probabilities = jnp.take_along_axis(probs, tokens, axis=-1)
    return ChildDraws(
        tokens=tokens,
        scores=scores,
        child_probs=jnp.where(scores > -jnp.inf, probabilities, 0.0),
        probs=probs,
        q=probs if sampled else None,
    )


def _find_sampling(sampling: Sampling | None, frame: Frame) -> Sampling:
    """Returns the draft's sampling: temperature 0 where the target's is None."""
    if frame.sampling is None:
        return sampling or Sampling(temperature=0.0)
    if frame.keys is None:
        raise InputError(
            "the drafter's scheme draws at random and key is None; pass key=0, or give the "
            "drafter scheme=jspec.schemes.COUPLED"
        )
    settings = sampling or frame.sampling
    if isinstance(settings.temperature, int | float) and settings.temperature == 0:
        raise InputError(
            "the draft's temperature is 0, which leaves the drafter's scheme no distribution to "
            "draw from; give the drafter sampling=jspec.Sampling(temperature=0.6), say, or "
            "scheme=jspec.schemes.COUPLED"
        )
    return settings
