"""Verifiers as pure functions over the logits of a tree, for engines of one's own.

No `State`, no model and no drafter: a tree, the target's logits at its nodes, where the trees begin
in their rows, and a key. Axes: T scored nodes of all rows, where they are packed; the rest as in
`jspec.types`.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jspec import sampling as samplings
from jspec._validate import seeds
from jspec._validate.errors import InputError
from jspec._validate.row_arguments import integers
from jspec._xla.manual_axes import default_row_ids
from jspec.protocols import Verifier
from jspec.tree.sanitize import check_tree, sanitize
from jspec.types import Frame, Sampling, Tree, Verdict
from jspec.verify import schemes


def verdict(
    verifier: Verifier,
    tree: Tree,
    logits: Float[Array, "B N V"] | Float[Array, "T V"],
    positions: ArrayLike,
    *,
    key: jax.Array | int | None = None,
    row_ids: ArrayLike | None = None,
    sampling: Sampling | None = None,
    places: Int[Array, "B N"] | None = None,
) -> Verdict:
    """Decides which path of each row's tree is emitted, and which token follows it.

    Pure: it works inside `jit` and loops. The randomness of a position depends on (key, row id,
    position) alone, so the same key serves all rounds of a generation. Under the coupled rule the
    tokens are then those of `jspec.decode` with this key, whatever the trees are.

    Args:
        verifier: such as `jspec.schemes.COUPLED.verifier`; `coupled` and its like have theirs.
        tree: the drafts; node 0 of a row is its last token, which no cache has yet. Malformed nodes
            are left out, see `jspec.round.sanitize`.
        logits: the target's at the nodes of the tree, after any processors of your own; or, with
            `places`, the logits of all scored nodes, one behind the other.
        positions: [B] position of node 0 in its row, from 0.
        key: one random key or a seed for all rows; needed for sampling.
        row_ids: [B] ids of the rows for their randomness; None: 0 .. B-1. A row keeps its id from
            round to round.
        sampling: temperature and filters, as in `jspec.decode`; None is greedy.
        places: [B, N] which of the T entries of packed logits a node has; T or more: it was not
            scored, and is left out. None: the logits are [B, N, V].

    Returns:
        The accepted nodes and the next token of each row; `tokens` has them one behind the other.

    Raises:
        InputError: if shapes or settings do not fit, or the verifier needs distributions that the
            tree has not (`Tree.q`), before anything is compiled.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> tree = jspec.tree.chain(2).fill(jnp.array([[5, 6, 7]]))
        >>> logits = jnp.zeros((1, 3, 9)).at[0, 0, 6].set(9.0).at[0, 1, 8].set(9.0)
        >>> found = jspec.verify.coupled(tree, logits, positions=[4])
        >>> found.path.tolist(), found.path_lengths.tolist(), found.bonus.tolist()
        ([[0, 1, 0]], [2], [8])
        >>> jspec.verify.tokens(tree, found)[0, :2].tolist()
        [6, 8]
    """
    batch = len(tree.tokens)
    check_tree("your engine", tree, batch)
    if places is not None:
        tree = replace(tree, valid=tree.valid & (places < len(logits)))
        logits = logits.at[places].get(mode="fill", fill_value=0)
    if logits.shape[:2] != tree.tokens.shape or logits.ndim != 3:
        raise InputError(
            f"logits has shape {logits.shape} and the tree has {tree.tokens.shape} nodes; pass "
            "[B, N, V], or [T, V] with places [B, N]"
        )
    sampling = samplings.by_row(sampling, batch)
    why = "an id of 32 bits; two rows of the same id draw the same noise"
    call_key = seeds.to_key(samplings.key_of(sampling, key))
    ids = default_row_ids(batch, tree.tokens, call_key) if row_ids is None else row_ids
    numbers = jnp.asarray(integers(ids, batch, "row_ids", -(2**31), 2**31 - 1, why))
    why = "the position of a row's last token"
    start = jnp.asarray(integers(positions, batch, "positions", 0, 2**31 - 1, why))
    frame = Frame(
        root=tree.tokens[:, 0],
        positions=start,
        keys=None if call_key is None else samplings.row_keys(call_key, numbers),
        sampling=jax.tree.map(jnp.asarray, sampling),
        done=jnp.zeros(batch, bool),
    )
    return verifier.verdict(sanitize(tree, frame.root, logits.shape[-1]), logits, frame)


coupled = partial(verdict, schemes.COUPLED.verifier)
"""`verdict` by the noise that plain decoding would draw the token with: lossless for every
tree, however it was drafted, and the tokens are those of plain decoding with the same key."""
recursive = partial(verdict, schemes.RECURSIVE.verifier)
"""`verdict` by recursive rejection (RSD; Jeon et al. 2024), for children that were drawn
without replacement from `Tree.q`."""
traversal = partial(verdict, schemes.TRAVERSAL.verifier)
"""`verdict` by traversal verification (Weng et al. 2025), for the same draws."""
block = partial(verdict, schemes.BLOCK.verifier)
"""`verdict` by block verification (Sun et al. 2024), for a sampled chain."""
