"""Exponential back-off of a drafter whose drafts save less time than they take.

A draft that is not verified costs its own time still: little beside a large target, nearly half a
round beside a tiny one. So what drafts save is summed up, and where that is less than they cost,
the drafter backs off: for a round, and twice as long each time that it did not pay.
A back-off ends by itself, and none is longer than 64. Meanwhile the drafter goes on learning: in
short back-offs from every round, in long ones from all of the text, and from what takes a pass over
the vocabulary in every fourth round alone.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec._xla import in_place
from jspec._xla.manual_axes import vary
from jspec.drafters.ensemble.members import knows_backoff
from jspec.protocols import Drafter
from jspec.types import Feedback, PyTree

_DECAY = 0.9
"""The share of what was saved that a round leaves."""
_LONGEST = 64
_LONG, _SKIPPED = 16, 4
"""Back-offs of so many rounds skip what takes long to learn, in all rounds but each fourth."""
_PATIENCE = 0.25
"""The share of a draft's time that drafts may cost more than they save, lately."""


@struct.dataclass
class Backoff:
    """When a drafter is asked next.

    Example:
        >>> backoff, asked = Backoff.init(), []
        >>> for _ in range(16):  # drafts that cost a second and save nothing
        ...     asked.append(bool(backoff.over))
        ...     backoff = backoff.after(jnp.float32(-1.0), jnp.float32(1.0))
        >>> "".join("x" if now else "." for now in asked)
        'xxx.xx..xx....xx'
    """

    saved: Float[Array, ""]
    """The running mean of the seconds that a draft saves, its own taken off."""
    left: Int[Array, ""]
    """Rounds before the drafter is asked again."""
    next: Int[Array, ""]
    """Rounds of the back-off after this one."""

    @classmethod
    def init(cls) -> "Backoff":
        """A drafter that is asked at once."""
        return cls(jnp.float32(0), jnp.int32(0), jnp.int32(1))

    @property
    def over(self) -> Bool[Array, ""]:
        """Whether the drafter is asked in this round."""
        return self.left == 0

    @property
    def skip_expensive_updates(self) -> Bool[Array, ""]:
        """Whether what takes long to learn may be left out of this round."""
        return (self.next > _LONG) & (self.left % _SKIPPED != 0)

    def count_down(self) -> "Backoff":
        """The back-off after a round in which the drafter was not asked."""
        return replace(self, left=self.left - 1)

    def after(self, saved: Float[Array, ""], cost: Float[Array, ""]) -> "Backoff":
        """The back-off after this round.

        Args:
            saved: the seconds that this round's draft saves beside a round without one. Not read
                in a back-off.
            cost: the seconds of a draft; drafts that cost nothing are always made.
        """
        mean = _DECAY * self.saved + (1 - _DECAY) * saved
        unpaid = (cost > 0) & (mean < -_PATIENCE * cost)
        asked = replace(
            self,
            # Half of the way back, so that a drafter which fails again backs off again soon.
            saved=jnp.where(unpaid, -_PATIENCE / 2 * cost, mean),
            left=jnp.where(unpaid, self.next, 0),
            next=jnp.where(unpaid, jnp.minimum(2 * self.next, _LONGEST), self.next),
        )
        asked = replace(asked, next=jnp.where(mean > 0, 1, asked.next))
        choose = partial(jnp.where, self.over)
        return jax.tree.map(choose, asked, self.count_down())


def draft_unless(in_backoff: Bool[Array, ""], draft: Callable[[], PyTree], *like: PyTree) -> PyTree:
    """What is drafted, or in a back-off zeros in its place: trees of absent nodes.

    Args:
        in_backoff: whether nothing is to be drafted.
        draft: gives a tree or more than that.
        like: all that the draft depends on.
    """

    def varying(drafted: PyTree) -> PyTree:
        # Under `shard_map` both branches have to vary as the rows do.
        return vary(drafted, in_backoff, *like)

    return jax.lax.cond(in_backoff, lambda: varying(absent(draft)), lambda: varying(draft()))


def absent(draft: Callable[[], PyTree]) -> PyTree:
    """Zeros in the place of a draft: nothing is computed."""
    shapes = jax.eval_shape(draft)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def update_unless(
    in_backoff: Bool[Array, ""] | None,
    drafter: Drafter,
    params: PyTree,
    memory: PyTree,
    aux: PyTree,
    own: Feedback,
    feedback: Feedback,
) -> PyTree:
    """The memory of a drafter after a round in which it may have rested, written in place.

    Args:
        in_backoff: whether it was not asked; None: it was.
        drafter: static.
        params: its own.
        memory: before the round.
        aux: of its draft, zeros in a back-off.
        own: the round as it sees it if it was asked.
        feedback: of the round.
    """
    if in_backoff is None:
        return drafter.update(params, memory, aux, own)
    if not knows_backoff(aux):  # one program serves both
        return drafter.update(params, memory, aux, feedback)

    def asked(memory: PyTree, given: tuple[PyTree, Feedback, Feedback]) -> PyTree:
        return drafter.update(params, memory, *given[:2])

    def rested(memory: PyTree, given: tuple[PyTree, Feedback, Feedback]) -> PyTree:
        return drafter.update(params, memory, None, given[2])

    index = in_backoff.astype(jnp.int32)
    return in_place.switch(index, [asked, rested], memory, (aux, own, feedback))


def learn_unless(
    skip_expensive_updates: Bool[Array, ""] | None, learn: Callable[[], PyTree], known: PyTree
) -> PyTree:
    """What is learnt of a round; `known`, and no work, in one that skips it.

    Args:
        skip_expensive_updates: of the feedback.
        learn: gives the like of `known`.
        known: small, since it is copied.
    """
    if skip_expensive_updates is None:
        return learn()
    return _learnt_if(~skip_expensive_updates, learn, known, jax.eval_shape(learn))


def if_any_drafted(valid: Bool[Array, "B N"], learn: Callable[[], PyTree], known: PyTree) -> PyTree:
    """What is learnt of a draft; `known`, and no work, where no row has a node of one.

    Args:
        valid: of the drafted trees.
        learn: gives the like of `known`.
        known: small, since it is copied.
    """
    return _learnt_if(valid[:, 1:].any(), learn, known)


def _learnt_if(
    asked: Bool[Array, ""], learn: Callable[[], PyTree], known: PyTree, *like: PyTree
) -> PyTree:
    """`learn()` or `known`, which both vary as the rows do and as `like`: `shard_map` wants it."""

    def like_rows(tree: PyTree) -> PyTree:
        return vary(tree, asked, known, *like)

    return jax.lax.cond(asked, lambda: like_rows(learn()), lambda: like_rows(known))
