"""A drafter whose draws are verified by another rule than the coupled one: a distribution."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jspec import sampling as samplings
from jspec.arrays.ragged import sequence
from jspec.protocols import Drafter
from jspec.testing.certification.goodness import distance
from jspec.testing.promises import Report, consistent_stats, promise
from jspec.testing.subject import Subject
from jspec.types import PyTree, Stopping

_CALLS = 300


def check_own_verifier(
    subject: Subject, drafter: Drafter, params: PyTree, verifier: str, report: Report
) -> None:
    """Checks greedy rows token by token, and first tokens of sampled rows by their distribution."""
    what = f"under the drafter's own verifier, {verifier}"
    result, plain = subject.run(drafter, params), subject.plain()
    consistent_stats(result, what)
    tokens, reference = np.asarray(result.tokens), np.asarray(plain.tokens)
    greedy = np.asarray(subject.request()["sampling"].temperature) == 0
    for row in np.flatnonzero(greedy):
        if (wrong := np.flatnonzero(tokens[row] != reference[row])).size:
            place = int(wrong[0])
            promise(
                False,
                f"{what}, greedy rows are those of plain decoding: token {place} of row {row} "
                f"should be {reference[row, place]} and is {tokens[row, place]}",
            )
    probs = _first_distribution(subject)
    counts = np.zeros(probs.shape, int)
    rows = np.arange(subject.batch)
    for call in range(_CALLS):
        ids = rows + subject.batch * (call + 1)
        result = subject.run(
            drafter, params, row_ids=ids, stopping=Stopping(max_tokens=np.ones_like(rows))
        )
        counts[rows, np.asarray(result.tokens)[:, 0]] += 1
    for row in np.flatnonzero(~greedy):
        far = distance(counts[row], probs[row])
        promise(
            far <= 1,
            f"{what}, tokens are drawn from the target's distribution: the first tokens of row "
            f"{row}, drawn {_CALLS} times, should be {_CALLS} times {probs[row].round(3).tolist()} "
            f"and are {counts[row].tolist()}, {far:.1f} times too far for chance",
        )
    report.checked.append(f"{what}: greedy rows, and the distribution of first tokens")
    report.skipped.append(
        f"{what}: the distribution of later tokens; all else was checked under jspec.rules.coupled"
    )


def _first_distribution(subject: Subject) -> Float[np.ndarray, "B V"]:
    """Returns the distribution of the first token of each row."""
    arguments = subject.request()
    positions, causal = sequence(*arguments["prompt"].shape)
    tokens = jnp.asarray(arguments["prompt"], jnp.int32)
    output = subject.model.apply(arguments["params"], tokens, positions, causal, None)
    last = jnp.asarray(arguments["prompt_lengths"] - 1)[:, None, None]
    logits = jnp.take_along_axis(output.logits, last, axis=1)
    rows = len(arguments["prompt"])
    sampling = jax.tree.map(lambda value: jnp.broadcast_to(value, (rows,)), arguments["sampling"])
    return np.asarray(samplings.node_probabilities(logits, sampling)[:, 0], np.float64)
