"""Partition invariance: how rows are split into batches changes no row."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jspec import decoding
from jspec._validate.errors import InputError
from jspec.drafters.retrieval.prompt_lookup import PromptLookup
from jspec.processors.log_probabilities import logprobs
from jspec.protocols import CausalLM
from jspec.testing.promises import Report, promise, same_tokens
from jspec.testing.subject import pad_prompts
from jspec.types import PyTree, Sampling

_ROWS = 4
_PARTITIONS = ([[3, 1, 0, 2]], [[0, 1], [2, 3]], [[3, 0], [1, 2]], [[2, 0], [3, 1]])
"""Batches of rows: in another order, and in pairs, each row first and last and in any company."""


def check_partitions(
    model: CausalLM,
    params: PyTree,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    tolerance: float = 1e-4,
    max_new_tokens: int = 16,
    **request: Any,
) -> Report:
    """Checks that rows have the same tokens and log-probabilities in any order and company.

    Four rows are decoded in one batch, in another order, and in batches of two, each row under its
    own `row_ids`: two programs. Rollouts may then be split into micro-batches freely.

    A batch of another size is another program, which may round otherwise, and a near tie then falls
    the other way. Float32 on a CPU has shown none; in bfloat16 there are some.

    Args:
        model: the target.
        params: its weights.
        prompts: four token lists; None: random ones of unequal lengths.
        tolerance: how far two log-probabilities of the same token may differ, in nats.
        max_new_tokens: of each row.
        request: all else as in `jspec.decode`, the same for all rows, `processors` in a list; by
            default `drafter=jspec.PromptLookup(3)` and temperature 1.

    Returns:
        A `Report`.

    Raises:
        AssertionError: if a row differs. The sentence names the batch, the row and the place.
        InputError: if there are not four prompts, or as in `jspec.decode`.

    Example:
        >>> from jspec.testing import PrefixLM, check_partitions
        >>> model = PrefixLM()
        >>> check_partitions(model, model.init()).checked
        ['rows of [4] and of [2, 2], in any order and company, are the same']
    """
    count = _ROWS if prompts is None else len(prompts)
    if count != _ROWS:
        raise InputError(f"there are {count} prompts; pass four")
    if "row_ids" in request:
        raise InputError("row_ids was given, and they are what is tried; leave them out")
    prompt, lengths = (array[:_ROWS] for array in pad_prompts(prompts, model))
    options: dict[str, Any] = {"drafter": PromptLookup(3), "sampling": Sampling(1.0), "key": 0}
    options |= request | {"max_new_tokens": max_new_tokens}
    members = [*options.pop("processors", ()), logprobs(0, "temp_scaled_logprobs")]

    def answers(rows: list[int]) -> Any:
        return decoding.decode(
            model, params, prompt[rows], lengths[rows], row_ids=np.array(rows),
            processors=members, **options,
        )  # fmt: skip

    reference = answers(list(range(_ROWS)))
    logprobs_of_all = np.asarray(reference.logprobs.token_logprobs)
    for partition in _PARTITIONS:
        for rows in partition:
            part = answers(rows)
            what = f"a batch of the rows {rows} has the answers of the batch of all"
            same_tokens(part, reference, what, rows=np.array(rows))
            gaps = np.abs(np.asarray(part.logprobs.token_logprobs) - logprobs_of_all[rows])
            row, place = np.unravel_index(gaps.argmax(), gaps.shape)
            promise(
                gaps[row, place] <= tolerance,
                f"{what}: the log-probability of row {rows[row]}, token {place}, should be "
                f"{logprobs_of_all[rows[row], place]:.6f} within {tolerance:g} and differs by "
                f"{gaps[row, place]:.3g}",
            )
    return Report(checked=["rows of [4] and of [2, 2], in any order and company, are the same"])
