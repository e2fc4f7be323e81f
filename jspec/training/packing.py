"""Documents as token sequences of one length, and the order in which training reads them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from jspec._validate.errors import InputError

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Packing:
    """The sequences of a run, and those that each step reads."""

    sequences: Int[np.ndarray, "M T+1"]
    """All training sequences; neighbours overlap by one token, so every token is predicted once."""
    order: Int[np.ndarray, "steps B"]
    """Rows of `sequences`."""

    def batch(self, step: int) -> Int[np.ndarray, "B T+1"]:
        return self.sequences[self.order[step]]


def pack(
    texts: Sequence[str], encode: Encode, end: int, length: int
) -> Int[np.ndarray, "M length+1"]:
    """Joins the documents, an end token before each, and cuts the stream to sequences.

    Raises:
        InputError: if the text is shorter than one sequence.
    """
    stream = np.concatenate([np.asarray([end, *encode(text)], np.int32) for text in texts])
    return cut(stream, length)


def cut(stream: Int[np.ndarray, " S"], length: int) -> Int[np.ndarray, "M length+1"]:
    """Whole sequences of a stream; neighbours overlap by one token, and the rest is left out.

    Raises:
        InputError: if the stream is shorter than one sequence.
    """
    check(len(stream), length)
    starts = np.arange((len(stream) - 1) // length)[:, None] * length
    return stream[starts + np.arange(length + 1)]


def check(total: int, length: int) -> None:
    """Raises InputError if so many tokens are less than one sequence."""
    if total <= length:
        raise InputError(
            f"the text holds {total} tokens but one sequence needs {length + 1}; "
            f"give more text or a sequence <= {max(total - 1, 1)}"
        )


def plan(
    packed: Mapping[str, Int[np.ndarray, "M T+1"]],
    weights: Mapping[str, float],
    steps: int,
    batch: int,
    seed: int,
) -> Packing:
    """Draws the class of each row by weight; within a class, shuffled epochs one after another.

    A pure function of its arguments, and the first steps do not depend on how many follow: a
    resumed run reads what the killed one would have read, a longer one starts as the shorter did.
    """
    sizes = {label: len(sequences) for label, sequences in packed.items()}
    rows = order(sizes, weights, steps * batch, seed)
    return Packing(np.concatenate(list(packed.values())), rows.reshape(steps, batch))


def order(
    sizes: Mapping[str, int], weights: Mapping[str, float], count: int, seed: int
) -> Int[np.ndarray, " count"]:
    """The class of each row drawn by weight; within a class, shuffled epochs one after another.

    Args:
        sizes: members of each class.

    Returns:
        Members, counted through all classes in their order. The first do not depend on `count`.
    """
    labels = list(sizes)
    shares = np.array([weights[label] for label in labels], np.float64)
    draws = np.random.default_rng([seed, 0]).random(count)
    classes = np.searchsorted(np.cumsum(shares / shares.sum()), draws, side="right")
    classes = np.minimum(classes, len(labels) - 1)
    members = np.empty(count, np.int64)
    base = 0
    for index, label in enumerate(labels):
        size, rows = sizes[label], np.flatnonzero(classes == index)
        generator = np.random.default_rng([seed, 1, index])
        epochs = [generator.permutation(size) for _ in range(-(-len(rows) // size))]
        if epochs:
            members[rows] = base + np.concatenate(epochs)[: len(rows)]
        base += size
    return members
