"""A low-rank candidate head: a narrow product finds candidates to score.

Source: EAGLE-4 (2026), by the documentation of its training in NVIDIA's NeMo AutoModel and of its
package eagle-harness.
"""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jspec._validate.arguments import check_integer
from jspec.arrays.top_k import top_k
from jspec.models.linear import unembed
from jspec.models.llama import LlamaConfig
from jspec.types import PyTree

COLLECTION = "candidates"
DOWN, UP = "down", "up"
"""The two factors, in this collection of a head's variables: [r, E], and [V, r]."""


@dataclass(frozen=True)
class CandidateConfig(LlamaConfig):
    """Shape of a layer whose scores may be of candidates alone."""

    candidate_rank: int = 0
    num_candidates: int = 0

    def __post_init__(self):
        check_integer("candidate_rank", self.candidate_rank, 0, self.hidden_size, "the width")
        minimum, maximum = int(self.candidate_rank > 0), self.vocab_size
        check_integer("num_candidates", self.num_candidates, minimum, maximum, "the vocabulary")


def factors(table: Float[Array, "V E"], rank: int) -> dict[str, Float[np.ndarray, "..."]]:
    """Returns the truncated SVD of a head, as two factors."""
    weights = np.asarray(table, np.float32)
    # The right singular vectors are those of E x E numbers: seconds, where V x E take minutes.
    _, vectors = np.linalg.eigh(weights.astype(np.float64).T @ weights)
    best = vectors[:, ::-1][:, :rank]
    return {DOWN: best.T.astype(np.float32), UP: weights @ best.astype(np.float32)}


def declare(head: nn.Module, config: CandidateConfig) -> None:
    """Declares the factors, as variables of a module."""
    rank, dtype = config.candidate_rank, head.param_dtype
    for name, shape in ((DOWN, (rank, config.hidden_size)), (UP, (config.vocab_size, rank))):
        head.variable(COLLECTION, name, jnp.zeros, shape, dtype)


def retrieve(hidden: Float[Array, "*S E"], tables: PyTree) -> Float[Array, "*S V"]:
    """Returns the scores by which candidates are found: the two factors'."""
    return unembed(unembed(hidden, tables[DOWN]), tables[UP])


def scores(head: Any, hidden: Float[Array, "*S E"], table: Float[Array, "V E"]) -> Array:
    """Returns the scores [*S, V] by a head's table; -inf for other tokens."""
    hidden = hidden.astype(head.dtype)
    if not head.config.candidate_rank:
        return unembed(hidden, table)
    tables = {name: head.get_variable(COLLECTION, name) for name in (DOWN, UP)}
    _, ids = top_k(retrieve(hidden, tables), head.config.num_candidates)
    rows = table[ids].astype(head.dtype)
    exact = jnp.einsum("...e,...ke->...k", hidden, rows, preferred_element_type=jnp.float32)
    wide = jnp.full((*exact.shape[:-1], len(table)), -jnp.inf, exact.dtype)
    return jnp.put_along_axis(wide, ids, exact, axis=-1, inplace=False)
