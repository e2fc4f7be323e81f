"""The lines of an n-gram table that needs no text: what follows each token of the vocabulary."""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.arrays.ragged import sequence
from jspec.arrays.top_k import top_k
from jspec.drafters.contrib.ngram_table import NGramLines
from jspec.protocols import CausalLM
from jspec.round.request import check_model
from jspec.types import PyTree

_TOKENS = 128
"""Tokens that a forward pass scores behind each prefix."""


def tabulate(
    model: CausalLM,
    params: PyTree,
    prefixes: Sequence[Sequence[int]],
    k: int = 8,
    earlier: NGramLines | None = None,
) -> Iterator[NGramLines]:
    """Yields the lines of the first tokens of the vocabulary, ever more of them, at last of all.

    jspec's own. A token's line is the mean, over the prefixes, of the target's distributions after
    the prefix and the token. The tokens of a forward pass are siblings, so that each prefix is read
    once.

    Args:
        model: the target.
        params: its weights.
        prefixes: token ids that a text begins with, one sequence or several; a sequence may be
            empty.
        k: candidates of a line.
        earlier: lines to go on from, of the same arguments; those that come are bit by bit the ones
            that come without them.

    Raises:
        InputError: if a prefix does not fit the model, or `earlier` are lines of something else.

    Example:
        >>> import jspec
        >>> from jspec.drafters.contrib import ngrams
        >>> model = jspec.testing.PrefixLM()
        >>> *_, lines = ngrams.tabulate(model, model.init(), [[5, 3, 9], [5]])
        >>> ngrams.table(lines).tokens.shape == (model.vocab_size, 8)
        True
    """
    size = model.vocab_size
    check_model(model, params)
    check_integer("k", k, 1, size, "the vocabulary")
    _check_prefixes(prefixes, size, model.context)
    count = 0 if earlier is None else _check_earlier(earlier, size, k)
    tokens, probs = np.zeros((size, k), np.int32), np.zeros((size, k), np.float32)
    if earlier is not None:
        tokens[:count], probs[:count] = earlier.tokens, earlier.probs
    lengths = np.array([len(prefix) for prefix in prefixes], np.int32)
    padded = np.zeros((len(prefixes), max(1, lengths.max())), np.int32)
    for row, prefix in zip(padded, prefixes, strict=True):
        row[: len(prefix)] = prefix

    @jax.jit
    def read(params: PyTree) -> PyTree:
        positions, causal = sequence(*padded.shape)
        memory = model.init_memory(*padded.shape)
        output = model.apply(params, jnp.asarray(padded), positions, causal, memory)
        return model.commit(memory, output.tentative, positions, jnp.asarray(lengths))

    @jax.jit
    def likeliest(
        params: PyTree, memory: PyTree, some: Int[Array, " N"]
    ) -> tuple[Float[Array, "N k"], Int[Array, "N k"]]:
        shape = len(prefixes), len(some)
        alone = jnp.broadcast_to(jnp.eye(len(some), dtype=bool), (*shape, len(some)))
        positions = jnp.broadcast_to(lengths[:, None], shape)
        output = model.apply(params, jnp.broadcast_to(some, shape), positions, alone, memory)
        return top_k(jax.nn.softmax(output.logits.astype(jnp.float32), axis=-1).mean(0), k)

    memory = read(params)
    while count < size:
        some = np.arange(count, count + _TOKENS, dtype=np.int32)
        new = jax.device_get(likeliest(params, memory, np.minimum(some, size - 1)))
        place, count = slice(count, count + _TOKENS), min(count + _TOKENS, size)
        probs[place], tokens[place] = (part[: count - place.start] for part in new)
        singles = np.arange(count, dtype=np.int32)
        yield NGramLines(tokens[:count], probs[:count], singles, np.zeros(0, np.uint32), size)


def _check_prefixes(
    prefixes: Sequence[Sequence[int]], vocab_size: int, context: int | None
) -> None:
    if not len(prefixes):
        raise InputError("there is no prefix; pass [[]] for tokens with nothing before them")
    for number, prefix in enumerate(prefixes):
        for token in prefix:
            check_integer(f"a token of prefix {number}", token, 0, vocab_size - 1)
        if context is not None and len(prefix) >= context:
            raise InputError(
                f"prefix {number} has {len(prefix)} tokens and the model's context is {context}; "
                f"shorten it to {context - 1}"
            )


def _check_earlier(earlier: NGramLines, vocab_size: int, k: int) -> int:
    """Returns the tokens that have a line; raises InputError unless they are the first ones."""
    count = len(earlier.singles)
    first = np.array_equal(earlier.singles, np.arange(count)) and not len(earlier.pairs)
    if not first or (earlier.vocab_size, earlier.tokens.shape[1]) != (vocab_size, k):
        raise InputError(
            f"the earlier lines have {earlier.tokens.shape[1]} candidates, {len(earlier.pairs)} "
            f"pairs and a vocabulary of {earlier.vocab_size}; pass lines that tabulate made of "
            f"this model, of {k} candidates for the first tokens of {vocab_size}"
        )
    return count
