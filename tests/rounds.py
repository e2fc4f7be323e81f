"""Rows of a round for verifiers: every eighth is greedy, the others have three temperatures."""

import jax
import numpy as np

from jspec import sampling as samplings
from jspec.types import Frame, Sampling


class Rows:
    """So many rows, with keys of their own."""

    def __init__(self, batch):
        self.batch = batch
        self.keys = samplings.row_keys(jax.random.key(0), np.arange(batch))
        lanes = np.arange(batch)
        self.mixed = self.settings(np.where(lanes % 8 == 7, 0, 1 + lanes % 3 / 4))

    def settings(self, temperature):
        """For all rows; plain numbers are what `decode` casts, not a verifier."""
        zeros = np.zeros(self.batch, np.float32)
        return Sampling(temperature + zeros, zeros.astype(np.int32), 1 + zeros, zeros)

    def frame(self, *sampling, done=False):
        """A round of these rows, with the mixed settings or given ones, of which None is greedy."""
        (given,) = sampling or (self.mixed,)
        return Frame(
            root=np.zeros(self.batch, np.int32),
            positions=np.arange(self.batch, dtype=np.int32) * 5,
            keys=self.keys,
            sampling=given,
            done=np.full(self.batch, done),
        )
