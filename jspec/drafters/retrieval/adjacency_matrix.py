"""Adjacency matrices: cells and lines by token, read and written.

Line t of an adjacency matrix [V, k] holds k tokens that looked likely after token t. R matrices
are one that all rows of the batch share (R = 1), or one for each row (R = B).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Shaped


def read_cells(
    matrix: Shaped[Array, "R V k"], tokens: Int[Array, "B N"], ranks: Int[np.ndarray, " N"]
) -> Shaped[Array, "B N"]:
    """Returns one cell of each token's line: of a rank."""
    # Matrix by matrix: rows' matrices are then read on the devices of their rows.
    by_matrix = tokens.reshape(matrix.shape[0], -1, tokens.shape[1])
    return jax.vmap(lambda lines, tokens: lines[tokens, ranks])(matrix, by_matrix).reshape(
        tokens.shape
    )


def read_lines(matrix: Shaped[Array, "R V k"], tokens: Int[Array, "B N"]) -> Shaped[Array, "B N k"]:
    """Returns the line of each token."""
    # Of one line XLA makes a slice, which is read again wherever it is used, and a matrix that is
    # read after it was written is copied whole. Of two it makes a gather, which is read once.
    twice = jnp.repeat(tokens, 2, axis=1) if tokens.size == 1 else tokens
    # Matrix by matrix, as `read_cells`.
    lines = jax.vmap(lambda matrix, tokens: matrix[tokens])(
        matrix, twice.reshape(matrix.shape[0], -1)
    )
    return lines.reshape(*twice.shape, -1)[:, : tokens.shape[1]]


def write_lines(
    matrix: Shaped[Array, "R V k"],
    tokens: Int[Array, "B N"],
    live: Bool[Array, "B N"],
    lines: Shaped[Array, "B N k"],
) -> Shaped[Array, "R V k"]:
    """Returns the matrix with the lines of some tokens replaced."""

    def write(matrix, tokens, live, lines):
        size = matrix.shape[0]
        line = jnp.where(live, tokens, size)
        # A scatter with repeated indices has no order: find each line's last writer, drop the rest.
        order = jnp.arange(line.shape[0], dtype=jnp.int32)
        last = jnp.full(size, -1, jnp.int32).at[line].max(order, mode="drop")
        wins = last.at[line].get(mode="fill", fill_value=-1) == order
        return matrix.at[jnp.where(wins, line, size)].set(lines, mode="drop")

    def split(array):
        return array.reshape(matrix.shape[0], -1, *array.shape[2:])

    # Matrix by matrix: one index over all cells would not fit into 32 bits for many rows.
    return jax.vmap(write)(matrix, split(tokens), split(live), split(lines))
