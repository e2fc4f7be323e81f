"""Rounds as tests hand them to drafters and verifiers, and the trees that come back."""

import jax
import jax.numpy as jnp
import numpy as np

from jspec import sampling as samplings
from jspec.types import Frame, Sampling


def greedy(root, positions=0, done=False):
    """A round of greedy rows with these last tokens, at these positions."""
    root = jnp.asarray(root)
    positions = jnp.broadcast_to(jnp.asarray(positions), root.shape)
    return Frame(root, positions, None, None, jnp.broadcast_to(done, root.shape))


def padded(texts, width=None, filler=0):
    """Texts as rows [B, T], with a token that means nothing behind each; and their lengths."""
    lengths = [len(text) for text in texts]
    tokens = np.full((len(texts), width or max(lengths)), filler, np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    return jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32)


def paths(tree, row):
    """{node: path of tokens} of the drafted nodes of a row that are present, in their order."""
    tree, found = jax.device_get(tree), {0: ()}
    for node in np.flatnonzero(tree.valid[row])[1:].tolist():
        found[node] = (*found[int(tree.parents[row, node])], int(tree.tokens[row, node]))
    del found[0]
    return found


def drafted(tree, row):
    """{path of tokens: value} of these nodes, in their order; no path may be there twice."""
    tree = jax.device_get(tree)
    found = paths(tree, row)
    values = {path: float(tree.value[row, node]) for node, path in found.items()}
    assert len(values) == len(found)
    return values


class Rows:
    """So many rows, with keys of their own: every eighth is greedy, others have temperatures."""

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


def coins(frame, num):
    """[B, num] numbers by which a verifier of whole paths decides in such a round."""
    forked = samplings.fork(frame.keys, frame.positions, 0)
    return np.array([jax.random.uniform(key, (num,)) for key in forked])


def check_verdict(verdict, frame, kept, residuals):
    """Checks how many tokens rows keep, and that the next one is drawn from what is left."""
    noise = samplings.gumbel(frame.keys, frame.positions + np.array(kept), len(residuals[0]))
    with np.errstate(divide="ignore"):
        bonus = np.argmax(np.log(residuals) + np.asarray(noise), axis=-1)
    assert verdict.bonus.tolist() == bonus.tolist()
    assert verdict.path_lengths.tolist() == [num + 1 for num in kept]
