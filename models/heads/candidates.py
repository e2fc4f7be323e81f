"""A low-rank candidate head: a narrow product finds candidates, and the whole head scores these.

Source: EAGLE-4 (2026), by the documentation of its training in NVIDIA's NeMo AutoModel and of its
package eagle-harness.
"""

from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.arrays.top_k import top_k
from jspec.models import blocks
from jspec.models.linear import unembed
from jspec.models.llama import LlamaConfig
from jspec.types import PyTree

States = Float[Array, "N E"] | Float[np.ndarray, "N E"]
COLLECTION = "candidates"
DOWN, UP = "down", "up"
"""The two factors, in this collection of a head's variables: [r, E], and [V, r]."""
_RIDGE = 0.01
"""Added to the states' second moments, as a share of their mean, for directions that few have."""


@dataclass(frozen=True)
class CandidateConfig(LlamaConfig):
    """Shape of a layer whose scores may be of candidates alone.

    Args:
        candidate_rank: rank r of the product that finds them; 0: all tokens are scored.
        num_candidates: tokens that are scored, those that it puts first.

    Raises:
        InputError: if the rank is above the width, or there are more candidates than tokens.
    """

    candidate_rank: int = 0
    num_candidates: int = 0

    def __post_init__(self):
        check_integer("candidate_rank", self.candidate_rank, 0, self.hidden_size, "the width")
        least, most = int(self.candidate_rank > 0), self.vocab_size
        check_integer("num_candidates", self.num_candidates, least, most, "the vocabulary")


def factors(
    table: Float[Array, "V E"], rank: int, states: States | None = None
) -> dict[str, Float[np.ndarray, "..."]]:
    """The two factors of the product of a rank that is nearest to a head.

    Without states it is the truncated SVD, which EAGLE-4 begins its training with. With states it
    is nearest in the mean square of their scores: the truncated SVD of the head times a root of
    their second moments. No training is needed to find the likeliest tokens then.

    Args:
        table: one row for each token.
        rank: r.
        states: some that will be scored; a few hundred do. None: all directions count alike.

    Returns:
        `down` [r, E] and `up` [V, r]; up @ down is near the table.
    """
    whole = np.asarray(blocks.table(table), np.float32)
    root = np.eye(whole.shape[1])
    if states is not None:
        seen = np.asarray(states, np.float64).reshape(-1, len(root))
        moments = seen.T @ seen / len(seen)
        root = np.linalg.cholesky(moments + _RIDGE * np.trace(moments) / len(root) * root)
    # The right singular vectors are those of E x E numbers, which take seconds where V x E would
    # take minutes.
    _, vectors = np.linalg.eigh(root.T @ (whole.T @ whole) @ root)
    best = vectors[:, ::-1][:, :rank]
    down, back = np.linalg.solve(root.T, best).T, root @ best
    return {DOWN: down.astype(np.float32), UP: whole @ back.astype(np.float32)}


def declare(head: nn.Module, config: CandidateConfig) -> None:
    """Declares the factors, as variables of a module."""
    rank, dtype = config.candidate_rank, head.param_dtype
    for name, shape in ((DOWN, (rank, config.hidden_size)), (UP, (config.vocab_size, rank))):
        head.variable(COLLECTION, name, jnp.zeros, shape, dtype)


def retrieve(hidden: Float[Array, "*S E"], held: PyTree) -> Float[Array, "*S V"]:
    """The scores by which candidates are found: those of the two factors.

    Args:
        hidden: the states.
        held: the factors.
    """
    return unembed(unembed(hidden, held[DOWN]), held[UP])


def scores(head: Any, hidden: Float[Array, "*S E"], table: Float[Array, "V E"]) -> Array:
    """The scores [*S, V] that states have by a head's table; -inf for what is no candidate.

    Args:
        head: the module, with `config` and `dtype`.
        hidden: the states.
        table: one row for each token.
    """
    hidden = hidden.astype(head.dtype)
    if not head.config.candidate_rank:
        return unembed(hidden, table)
    held = {name: head.get_variable(COLLECTION, name) for name in (DOWN, UP)}
    _, ids = top_k(retrieve(hidden, held), head.config.num_candidates)
    rows = table[ids].astype(head.dtype)
    exact = jnp.einsum("...e,...ke->...k", hidden, rows, preferred_element_type=jnp.float32)
    wide = jnp.full((*exact.shape[:-1], len(table)), -jnp.inf, exact.dtype)
    return jnp.put_along_axis(wide, ids, exact, axis=-1, inplace=False)


def with_candidates(
    head: Any,
    params: PyTree,
    rank: int,
    count: int,
    states: States | None = None,
) -> tuple[Any, PyTree]:
    """A head that scores candidates alone, which a product of low rank finds, in place of all.

    The factors are made of the table that it scores by, see `factors`; `jspec train candidates`
    trains them further. A head of hot tokens has candidates among all tokens instead.

    Args:
        head: an EAGLE, block or MTP head, which scores by the target's table or by one of as many
            tokens.
        params: its variables.
        rank: of the product.
        count: candidates of each state.
        states: some that the target's head scores, `Output.hidden` of any text; a plain SVD misses
            most of the likeliest tokens.

    Returns:
        The module and its variables.

    Raises:
        InputError: if rank or count is out of range, there are no states, or the head scores by
            tables that have rows for some tokens alone.

    Example:
        >>> from jspec import models
        >>> head, params, _ = models.heads.load("jspec-7m/eagle", models.load("jspec-7m"))
        >>> narrow, params = models.heads.with_candidates(head, params, rank=32, count=64)
        >>> params["candidates"]["up"].shape
        (4096, 32)
    """
    check_integer("rank", rank, 1, head.config.hidden_size, "the width")
    changes = {"candidate_rank": rank, "num_candidates": count}
    if getattr(head.config, "hot_tokens", 0):
        changes["hot_tokens"] = 0
    made = head.clone(config=replace(head.config, **changes))
    own = params["params"].get("head")
    table = params["target"]["head"] if own is None else own
    narrow = getattr(head.config, "markov_tables", False) and getattr(head.config, "hot_tokens", 0)
    if len(table) != head.vocab_size or narrow:
        raise InputError(
            f"this head has tables of some of the {head.vocab_size} tokens alone, and its "
            "candidates may be any; use a head that scores all tokens, or the target's hot ones"
        )
    if states is not None and not len(states):
        raise InputError("there are no states to find the factors by; give some, or None")
    best = factors(table, rank, states)
    kept = {name: part for name, part in params.items() if name not in ("scored", "hot")}
    held = {name: jnp.asarray(array, head.param_dtype) for name, array in best.items()}
    return made, kept | {COLLECTION: held}
