"""Drafted texts against plain ones: each divergence is a tie of rounding or a bug."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jspec import sampling as samplings
from jspec.testing.certification.forwards import next_logits
from jspec.testing.certification.rounding import Rounding, ulp
from jspec.testing.certification.runs import CertifiedRun, CertifiedSubject
from jspec.types import Sampling

TIE, BUG = "tie", "bug"
_STEPS = 96
"""Changes that are tried, each sqrt(2) times the one before, from a 256th of a unit on."""


@dataclass(frozen=True)
class Divergence:
    """The first place in which a drafted text leaves the plain one."""

    prompt: int
    """The prompt's number, from 0."""
    position: int
    """The number of the generated token, from 0."""
    plain: int | None
    """The token of plain decoding; None: it had ended."""
    drafted: int | None
    gap: float
    """Rounding error that swaps the two tokens: their logits' gap in greedy decoding, otherwise
    twice the least change of single logits that makes the target draw the other token. Infinity if
    no rounding does it.
    """
    bounds: float
    """The gap over what rounding was seen to explain, `Rounding.bound` or `drawn_bound`."""
    verdict: str
    """`tie` up to 1 bound, else `bug`."""


@dataclass(frozen=True)
class Parity:
    """All prompts, decoded plainly and with drafts."""

    num_prompts: int
    num_tokens: int
    """Tokens of the plain texts that were compared: up to the divergence, if there is one."""
    divergences: tuple[Divergence, ...]

    @property
    def num_equal(self) -> int:
        return self.num_prompts - len(self.divergences)

    @property
    def nearest(self) -> float | None:
        """The gap of the tie that comes nearest to a bug, in bounds; None without a tie."""
        return max(
            (divergence.bounds for divergence in self.divergences if divergence.verdict == TIE),
            default=None,
        )

    @property
    def bugs(self) -> tuple[Divergence, ...]:
        return tuple(divergence for divergence in self.divergences if divergence.verdict == BUG)


def first_difference(plain: Sequence[int], drafted: Sequence[int]) -> int | None:
    """Returns the first place in which two texts differ; None if they do not."""
    if list(plain) == list(drafted):
        return None
    pairs = enumerate(zip(plain, drafted, strict=False))
    shorter = min(len(plain), len(drafted))
    return next((place for place, (first, other) in pairs if first != other), shorter)


def compare(
    subject: CertifiedSubject,
    plain: CertifiedRun,
    drafted: CertifiedRun,
    sampling: Sampling | None,
    rounding: Rounding,
) -> Parity:
    """Compares two runs, and judges their divergences."""
    differences, num_tokens = [], 0
    for row, (first, other) in enumerate(zip(plain.tokens, drafted.tokens, strict=True)):
        place = first_difference(first, other)
        num_tokens += len(first) if place is None else place + 1
        if place is not None:
            differences.append((row, place))
        elif plain.status[row] != drafted.status[row]:
            differences.append((row, len(first)))
    texts = [[*subject.prompts[row], *plain.tokens[row][:place]] for row, place in differences]
    logits = next_logits(subject.model, subject.params, texts) if differences else ()
    divergences = []
    for (row, place), row_logits in zip(differences, logits, strict=True):
        tokens = [text[row][place : place + 1] for text in (plain.tokens, drafted.tokens)]
        first, other = (token[0] if token else None for token in tokens)
        noise = None
        if sampling is not None and sampling.temperature != 0:
            # Drawn at the position of the token before it, as in a round.
            position = jnp.array([len(subject.prompts[row]) - 1 + place])
            noise = samplings.gumbel(subject.keys(jnp.array([row])), position, len(row_logits))[0]
        judged = _judge(row_logits, first, other, sampling, noise, rounding)
        divergences.append(Divergence(row, place, first, other, *judged))
    return Parity(len(plain.tokens), num_tokens, tuple(divergences))


def _judge(
    logits: Float[np.ndarray, " V"],
    plain: int | None,
    drafted: int | None,
    sampling: Sampling | None,
    noise: Float[Array, " V"] | None,
    rounding: Rounding,
) -> tuple[float, float, str]:
    """Returns gap, bounds and verdict of a `Divergence`."""
    if plain is None or drafted is None:
        # The same tokens, and one text ended: no rounding of logits does that.
        return float("inf"), float("inf"), BUG
    unit = ulp(float(abs(logits[[plain, drafted]]).max()), rounding.epsilon)
    if sampling is None or noise is None:
        gap, bound = float(abs(logits[plain] - logits[drafted])), rounding.bound
    else:
        gap = 2 * _least_change(logits, drafted, sampling, noise, unit)
        bound = rounding.drawn_bound
    return gap, gap / bound, TIE if gap <= bound else BUG


def _least_change(
    logits: Float[np.ndarray, " V"],
    token: int,
    sampling: Sampling,
    noise: Float[Array, " V"],
    unit: float,
) -> float:
    """Returns the least change of each logit that draws the token, within sqrt(2)."""
    sizes = np.append(0.0, unit / 256 * 2.0 ** (np.arange(_STEPS) / 2)).astype(np.float32)
    alone = jax.tree.map(lambda value: jnp.broadcast_to(value, (1,)), sampling)
    drawn = np.asarray(_draw(jnp.asarray(logits), jnp.int32(token), sizes, alone, noise))
    hit = (drawn == token).any(0)
    return float(sizes[hit.argmax()]) if hit.any() else float("inf")


@jax.jit
def _draw(
    logits: Float[Array, " V"],
    token: Int[Array, ""],
    sizes: Float[Array, " C"],
    sampling: Sampling,
    noise: Float[Array, " V"],
) -> Int[Array, "2 C"]:
    """Returns the token that the noise draws after each change of each kind."""
    is_token = jnp.arange(logits.shape[0]) == token
    lifted = jnp.where(is_token, 1.0, -1.0)
    filtered = jnp.where(is_token | (logits < logits[token]), 1.0, -1.0)

    def draw(change: Float[Array, " V"]) -> Int[Array, ""]:
        probs = samplings.probabilities((logits + change)[None], sampling)[0]
        return samplings.argmax(jnp.log(probs) + noise)

    return jnp.stack(
        [
            jax.lax.map(lambda size, kind=kind: draw(size * kind), sizes)
            for kind in (lifted, filtered)
        ]
    )
