"""The contract of a drafter: its draft changes the number of rounds, and nothing else."""

import copy
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jspec import decoding
from jspec._validate.errors import InputError
from jspec.arrays.ragged import sequence
from jspec.drafters.merge import merge
from jspec.drafters.retrieval.prompt_lookup import PromptLookup
from jspec.drafters.verified import with_verifier
from jspec.protocols import CausalLM, Drafter
from jspec.round.request import prepare
from jspec.testing.drafter_runs import (
    check_backoff,
    check_comes_and_goes,
    check_cuts,
    check_goes_on,
    check_hot_start,
    check_nan,
    check_rows,
)
from jspec.testing.own_verifier import check_own_verifier
from jspec.testing.prefix_lm import PrefixLM
from jspec.testing.promises import (
    Report,
    accepted_by_the_engine,
    consistent_stats,
    promise,
    same_tokens,
)
from jspec.testing.subject import Subject, pad_prompts
from jspec.testing.tree_contract import check_trees
from jspec.testing.watch import (
    Poisoned,
    WatchedDrafter,
    WatchedModel,
    read_log,
)
from jspec.tree.sanitize import check_tree
from jspec.types import Frame, PromptChunk, PyTree, Result
from jspec.verify import rules
from jspec.verify.choice import verifier_of
from jspec.verify.schemes import COUPLED


def check_drafter(
    drafter: Drafter,
    params: PyTree = None,
    *,
    model: CausalLM | None = None,
    model_params: PyTree = None,
    prompts: Sequence[Sequence[int]] | None = None,
    max_new_tokens: int = 40,
    in_merge: bool = True,
    thorough: bool = False,
) -> Report:
    """Checks all that jspec expects of a drafter, by running it.

    The promises: tokens equal those of plain decoding, greedy and sampled with the same key; a row
    does not see its neighbours; end tokens and limits cut inside an accepted path; neither a hot
    start nor a text that is read in two parts changes a token or compiles anything; a request that
    comes to a row later has its own tokens; rounds in which the drafter is not asked change no
    token, and leave no gap in a memory that `follows_text`; a row of NaN ends alone; trees are
    trees as they were drafted, before the engine takes malformed nodes for absent; the drafter is
    static, hashable and equal to its copy; it works inside `jspec.merge` and
    under a caller's `jit`. Nearly all of them are runs of one compiled program, so a check takes
    seconds.

    A drafter whose draws are verified by another rule than `jspec.rules.coupled` gives tokens of
    the same distribution, not the same tokens. It is compared under `coupled`; under its own rule
    greedy rows and the distribution of first tokens are, and the report says what is not.

    Args:
        drafter: the drafter under test.
        params: its weights, if it has any.
        model: the target; None is `jspec.testing.PrefixLM`, 23 tokens.
        model_params: the target's weights; None only without a model.
        prompts: at least two token lists for the target; None: six ragged ones.
        max_new_tokens: most tokens per row; enough for some draft to be accepted.
        in_merge: whether the drafter shall also run inside `jspec.merge`: a program of its own.
        thorough: compile more programs: a batch of one row, a greedy call without a key, and a call
            under `jit`, which else is traced and not run.

    Returns:
        A `Report` of what was checked, what was not and why, and what costs speed.

    Raises:
        AssertionError: if a promise is broken. The sentence names the promise and the row or round,
            what was expected and what was observed.
        InputError: if the arguments do not fit together.

    Example:
        In a test file of your own (`tests/test_my_drafter.py`), where pytest finds it:

        >>> import jspec
        >>> from jspec.testing import check_drafter
        >>> def test_my_drafter():
        ...     report = check_drafter(jspec.PromptLookup(num_speculative_tokens=3))
        ...     assert not report.skipped
    """
    if isinstance(drafter, type) or not isinstance(drafter, Drafter):
        raise InputError(
            f"drafter is {drafter!r:.80}; pass an instance with init, prefill, draft and update"
        )
    if model is None and model_params is not None:
        raise InputError("model_params came without a model; pass both, or neither")
    if model is None:
        model = PrefixLM()
        model_params = model.init()
    subject = Subject(
        WatchedModel(model), model_params, *pad_prompts(prompts, model), max_new_tokens
    )
    report = Report()

    _check_static(drafter, report)
    drafter = _couple(drafter, params, subject, report)
    with accepted_by_the_engine(_name(drafter)):
        tree = _tree_of(drafter, params, subject)
        # First without what watches it, so that a refusal names the drafter itself.
        _check_jit(subject, drafter, params, report)
        watched = WatchedDrafter(drafter, tree, max_new_tokens)
        plain = subject.plain()
        first = subject.run(watched, params)
        same_tokens(first, plain, "tokens are those of plain decoding")
        consistent_stats(first, "statistics of a run")
        report.checked.append("tokens are those of plain decoding, greedy and sampled")
        log = read_log(first.drafter_state)
        check_trees(log, tree, model.vocab_size, report)
        check_cuts(subject, watched, params, plain, log, report)
        check_rows(subject, watched, params, report)
        check_nan(subject, watched, params, report)
        check_hot_start(subject, watched, params, first, report)
        check_goes_on(subject, watched, params, report)
        check_backoff(subject, watched, params, report)
        check_comes_and_goes(subject, watched, params, report)
        if in_merge:
            _check_merge(subject, drafter, params, plain, report)
        else:
            report.skipped.append("inside jspec.merge: in_merge is False")
        if thorough:
            _check_other_programs(subject, drafter, params, report)
    return report


def _name(drafter: Drafter) -> str:
    return type(drafter).__name__


def _check_static(drafter: Drafter, report: Report) -> None:
    try:
        twin = copy.deepcopy(drafter)
        equal = twin == drafter and hash(twin) == hash(drafter)
    except TypeError as error:
        raise AssertionError(
            f"a drafter is static and hashable: {_name(drafter)} is not ({error}); make it a "
            "frozen dataclass and keep arrays in its params or its state"
        ) from error
    promise(
        equal,
        f"a drafter is equal to its copy: {_name(drafter)} is unequal or hashes otherwise, "
        "so each instance would compile anew; make it a frozen dataclass",
    )
    report.checked.append("static, hashable and equal to its copy")


def _couple(drafter: Drafter, params: PyTree, subject: Subject, report: Report) -> Drafter:
    """Returns the drafter, under the rule that keeps the tokens of plain decoding."""
    verifier = verifier_of(drafter)
    if verifier == COUPLED.verifier:
        return drafter
    with accepted_by_the_engine(f"{_name(drafter)} under {verifier}"):
        check_own_verifier(subject, drafter, params, str(verifier), report)
    return with_verifier(drafter, rules.coupled)


def _tree_of(drafter: Drafter, params: PyTree, subject: Subject) -> Any:
    """Returns the tree that the drafter drafts, without its values."""
    arguments = subject.request()
    del arguments["params"]
    prepared = prepare(**arguments)
    call = jax.tree.map(jax.numpy.asarray, prepared.arrays)  # as the engine traces them
    batch, width = call.prompt.shape
    positions, causal = sequence(batch, width)
    weights = subject.request()["params"]

    def first_tree(params: PyTree, weights: Poisoned) -> Any:
        output = subject.model.apply(weights, call.prompt, positions, causal, None)
        state = drafter.init(batch, prepared.capacity, None)
        chunk = PromptChunk.whole(call.prompt, call.prompt_lengths, output)
        state = drafter.prefill(params, state, chunk)
        frame = Frame(
            root=call.prompt[:, 0],
            positions=call.prompt_lengths - 1,
            keys=jax.random.split(jax.random.key(0), batch),
            sampling=call.controls.sampling,
            done=call.prompt_lengths < 0,
        )
        returned = drafter.draft(params, state, frame)
        promise(
            isinstance(returned, tuple) and len(returned) == 2,
            f"draft returns (tree, aux): {_name(drafter)} returned {type(returned).__name__}",
        )
        return returned[0]

    tree = jax.eval_shape(first_tree, params, weights)
    check_tree(_name(drafter), tree, batch)
    return tree


def _check_jit(subject: Subject, drafter: Drafter, params: PyTree, report: Report) -> None:
    """Checks a greedy call without a key under a caller's jit: traced, and not compiled."""
    arguments = subject.request(row_ids=None)
    arrays = {
        name: arguments.pop(name) for name in ("params", "prompt", "prompt_lengths", "stopping")
    }

    def shape(**other: Any) -> Any:
        def call(arrays: dict[str, Any], weights: PyTree) -> Any:
            call_arguments = arguments | arrays | other
            return decoding.decode(**call_arguments, drafter=drafter, drafter_params=weights).tokens

        return jax.eval_shape(call, arrays, params)

    try:
        tokens = shape(sampling=None, key=None)
        what = "a greedy call without a key traces under jit"
    except InputError as error:
        # Draws at random need a key and a temperature, whatever the target's sampling.
        report.skipped.append(f"a greedy call without a key: refused ({error})")
        tokens, what = shape(), "a call traces under jit"
    result_shape = (subject.batch, subject.max_new_tokens)
    promise(
        tokens.shape == result_shape,
        f"a call under jit gives tokens of shape {result_shape}; this one gave {tokens.shape}",
    )
    report.checked.append(what)


def _check_merge(
    subject: Subject, drafter: Drafter, params: PyTree, plain: Result, report: Report
) -> None:
    """Checks the drafter as the second of a merge, so that none of its nodes keeps its number."""
    both = merge(PromptLookup(num_speculative_tokens=2, whole=False), drafter)
    try:
        result = subject.run(both, (None, params))
    except InputError as error:
        report.skipped.append(f"inside jspec.merge: refused ({error})")
        return
    what = "tokens inside jspec.merge are those of plain decoding"
    same_tokens(result, plain, what)
    consistent_stats(result, what)
    state = result.drafter_state
    hot = subject.run(both, (None, params), drafter_state=state)
    same_tokens(hot, plain, f"{what} (hot start)")
    report.checked.append(what)


def _check_other_programs(
    subject: Subject, drafter: Drafter, params: PyTree, report: Report
) -> None:
    single = subject.request(order=np.arange(1))
    runs: dict[str, Any] = dict(drafter=drafter, drafter_params=params)
    same_tokens(
        decoding.decode(**single, **runs), decoding.decode(**single), "tokens of a batch of one row"
    )
    keyless = not any("without a key" in line for line in report.skipped)
    greedy = subject.request(**(dict(sampling=None, key=None) if keyless else {}))
    plain = decoding.decode(**greedy)
    same_tokens(decoding.decode(**greedy, **runs), plain, "tokens of a greedy call")
    arrays = {name: greedy.pop(name) for name in ("params", "prompt", "prompt_lengths", "stopping")}
    jitted = jax.jit(
        lambda arrays, weights: decoding.decode(
            **greedy, **arrays, drafter=drafter, drafter_params=weights
        )
    )(arrays, params)
    # A bucket of other sizes than outside of jit: the capacity may be another.
    traced_plain = jax.jit(lambda arrays: decoding.decode(**greedy, **arrays))(arrays)
    same_tokens(jitted, traced_plain, "tokens under jit")
    report.checked.append("tokens of a batch of one, of a greedy call, and under jit")
