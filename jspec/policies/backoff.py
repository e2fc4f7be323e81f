"""Exponential back-off of a drafter whose drafts save less time than they take.

A draft that is not verified costs its own time still: little alongside a large target, nearly half
a round alongside a tiny one. So what drafts save is summed up, and where that is less than they
cost, the drafter backs off: for a round, and twice as long each time that it did not pay.
A back-off ends by itself, and none is longer than 64. Meanwhile the drafter goes on learning: in
short back-offs from every round, in long ones from all of the text, and from what takes a pass over
the vocabulary in every fourth round alone.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct

_DECAY = 0.9
"""The share of what was saved that a round leaves."""
_LONGEST = 64
_LONG, _SKIPPED = 16, 4
"""Back-offs of so many rounds skip what takes long to learn, in all rounds but each fourth."""
_PATIENCE = 0.25
"""The share of a draft's time that drafts may cost more than they save, lately."""


@struct.dataclass
class Backoff:
    """When a drafter is asked next."""

    saved: Float[Array, ""]
    """The running mean of the seconds that a draft saves, its own taken off."""
    left: Int[Array, ""]
    """Rounds before the drafter is asked again."""
    next: Int[Array, ""]
    """Rounds of the back-off after this one."""

    @classmethod
    def init(cls) -> "Backoff":
        """Returns a drafter that is asked at once."""
        return cls(jnp.float32(0), jnp.int32(0), jnp.int32(1))

    @property
    def over(self) -> Bool[Array, ""]:
        """True if the drafter is asked in this round."""
        return self.left == 0

    @property
    def skip_expensive_updates(self) -> Bool[Array, ""]:
        """True if expensive learning may be left out of this round."""
        return (self.next > _LONG) & (self.left % _SKIPPED != 0)

    def count_down(self) -> "Backoff":
        """Returns the back-off after a round in which the drafter was not asked."""
        return replace(self, left=self.left - 1)

    def after(self, saved: Float[Array, ""], cost: Float[Array, ""]) -> "Backoff":
        """Returns the back-off after this round."""
        mean = _DECAY * self.saved + (1 - _DECAY) * saved
        unpaid = (cost > 0) & (mean < -_PATIENCE * cost)
        backoff = replace(
            self,
            # Half of the way back, so that a drafter which fails again backs off again soon.
            saved=jnp.where(unpaid, -_PATIENCE / 2 * cost, mean),
            left=jnp.where(unpaid, self.next, 0),
            next=jnp.where(unpaid, jnp.minimum(2 * self.next, _LONGEST), self.next),
        )
        backoff = replace(backoff, next=jnp.where(mean > 0, 1, backoff.next))
        choose = partial(jnp.where, self.over)
        return jax.tree.map(choose, backoff, self.count_down())
