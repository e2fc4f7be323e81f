"""The contract of a `CausalLM` with the engine, as one function."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jspec import decoding
from jspec._validate.arguments import takes
from jspec._validate.errors import InputError
from jspec.protocols import CausalLM
from jspec.testing.model_subject import LEVELS, PARENTS, PAST, SLOTS, ModelSubject, above, text_of
from jspec.testing.promises import Report, accepted_by_the_engine, promise
from jspec.types import Output, PyTree

_ORDER = np.array([0, 1, 3, 2, 4, 5])
"""Nodes of a chain in an order of their own; the parents' places in it follow from it."""


def check_model(
    model: CausalLM,
    params: PyTree,
    *,
    tolerance: float | None = None,
    seed: int = 0,
) -> Report:
    """Checks all that jspec expects of a model, by running it on random tokens.

    The promises: shapes and dtypes of `Output` and of the memory, whose rows are the first axis of
    every leaf; a tree's node is scored as the end of its own path by a whole forward pass, so that
    no sibling is seen and positions are those given; a text in chunks is scored as the whole; what
    was not committed, or was cut off, leaves no trace; a path of a tree that is committed is as its
    text that is read; rows are independent, also in the memory; a tree by levels (`nodes=`) is
    scored as at once; the model is static, hashable and equal to its copy; `jspec.decode` gives the
    tokens of a naive loop over whole forward passes.

    Args:
        model: the model under test. It needs room for 24 positions.
        params: its weights.
        tolerance: how far two scores of the same token may differ, as a part of the largest logit;
            None: 1e-4 in float32 and float64, 0.05 in types of lower precision.
        seed: of the random tokens.

    Returns:
        A `Report`. A model that takes no `nodes` serves as a target only, and one without `until`
        cannot be cut back, which are not broken promises: the report says what was skipped.

    Raises:
        AssertionError: if a promise is broken. The sentence names the promise and the row and node,
            what was expected and what was observed.
        InputError: if the model has no room for the check, or its weights' mesh is explicit.

    Example:
        In a test file of your own:

        >>> from jspec.testing import PrefixLM, check_model
        >>> def test_my_model():
        ...     model = PrefixLM(vocab_size=50)
        ...     check_model(model, model.init(seed=1))
    """
    for leaf in jax.tree.leaves(params):
        if jax.typeof(leaf).sharding.mesh.explicit_axes:
            raise InputError(
                "the params lie on a mesh of explicit axes, on which a model that is called by "
                "itself has to say how its products lie; pass them on one of automatic axes: "
                "jax.make_mesh(.., axis_types=(jax.sharding.AxisType.Auto,) * 2)"
            )
    report = Report()
    _check_static(model, report)
    rng = np.random.default_rng(seed)
    size = int(PAST.max()) + len(PARENTS)
    tokens = rng.integers(model.vocab_size, size=(len(PAST), size))
    subject = ModelSubject(model, params, tokens, tolerance)
    whole = subject.whole(tokens)
    _check_output(subject, whole, report)
    subject.widest = float(np.abs(np.asarray(whole.logits, np.float64)).max())
    _check_rows(subject, whole, report)
    _check_chunks(subject, whole, report)
    _check_tree(subject, report)
    _check_commit(subject, report)
    _check_levels(subject, report)
    with accepted_by_the_engine(type(model).__name__):
        _check_decode(subject, report)
    return report


def _check_static(model: CausalLM, report: Report) -> None:
    name = type(model).__name__
    try:
        twin = copy.deepcopy(model)
        equal = twin == model and hash(twin) == hash(model)
    except TypeError as error:
        raise AssertionError(
            f"a model is static and hashable: {name} is not ({error}); make it a frozen dataclass "
            "and keep arrays in its params"
        ) from error
    promise(equal, f"a model is equal to its copy: {name} has unequal or hashes otherwise")
    size = model.vocab_size
    promise(
        isinstance(size, int | np.integer) and size > 0,
        f"vocab_size is a positive int: {name} has {size!r}",
    )
    room, needed = model.context, int(PAST.max()) + len(PARENTS)
    promise(
        room is None or (isinstance(room, int | np.integer) and room > 0),
        f"context is a positive int, or None: {name} has {room!r}",
    )
    if room is not None and room < needed:
        raise InputError(f"context is {room} and the check needs {needed}; make a longer one")
    report.checked.append("static, hashable and equal to its copy; vocab_size and context")


def _check_output(subject: ModelSubject, output: Output, report: Report) -> None:
    model, (batch, count) = subject.model, subject.tokens.shape
    promise(isinstance(output, Output), f"apply returns a jspec.Output, not {type(output)}")
    shape = (batch, count, model.vocab_size)
    promise(
        output.logits.shape == shape and jnp.issubdtype(output.logits.dtype, jnp.floating),
        f"Output.logits are floats of shape {shape}: they are {output.logits.dtype} of shape "
        f"{output.logits.shape}",
    )
    hidden = output.hidden
    promise(
        hidden is None or (hidden.ndim == 3 and hidden.shape[:2] == (batch, count)),
        f"Output.hidden is None or of shape ({batch}, {count}, E): its shape is "
        f"{None if hidden is None else hidden.shape}",
    )
    promise(
        output.tentative is not None and bool(jax.tree.leaves(output.tentative)),
        "Output.tentative is what commit takes of the tokens, arrays of any shape: it is "
        f"{output.tentative!r:.40}",
    )
    smaller, larger = (
        jax.eval_shape(lambda n=n: model.init_memory(n, SLOTS)) for n in (batch, batch + 1)
    )
    leaves = [jax.tree.leaves(memory) for memory in (smaller, larger)]
    promise(
        bool(leaves[0])
        and len(leaves[0]) == len(leaves[1])
        and all(
            (a.shape[:1], b.shape) == ((batch,), (batch + 1, *a.shape[1:]))
            for a, b in zip(*leaves, strict=True)
        ),
        "init_memory returns arrays whose first axis are the rows: of "
        f"{batch} rows they are {[leaf.shape for leaf in leaves[0]]!r:.200}",
    )
    promise(
        np.isfinite(np.asarray(output.logits, np.float64)).all(),
        "the logits of random tokens are numbers: some are NaN or infinite",
    )
    report.checked.append("shapes and dtypes of Output and of the memory")


def _check_rows(subject: ModelSubject, reference: Output, report: Report) -> None:
    changed = subject.tokens.copy()
    changed[0] = (changed[0] + 1) % subject.model.vocab_size
    logits = subject.whole(changed).logits
    for row in range(1, len(changed)):
        subject.same(
            logits[row],
            reference.logits[row],
            f"rows are independent: other tokens in row 0 changed row {row}",
        )
    report.checked.append("rows are independent")


def _check_chunks(subject: ModelSubject, reference: Output, report: Report) -> None:
    """Checks the end of a text after its beginning in a memory, which is only read."""
    count = len(PARENTS)
    positions, mask = text_of((len(PAST), count))
    positions = positions + PAST[:, None]
    output = subject.apply(subject.draft(), positions, mask, subject.memory())
    for row, past in enumerate(PAST.tolist()):
        for node in range(count):
            subject.same(
                output.logits[row, node],
                reference.logits[row, past + node],
                f"a text in chunks is scored as the whole: row {row}, token {past + node}, after "
                f"{past} committed tokens",
            )
    stale = subject.apply(subject.draft(), positions, mask, subject.memory(stale=True))
    for row in range(len(PAST)):
        subject.same(
            stale.logits[row],
            output.logits[row],
            f"tokens that are not committed{', or cut off,' if subject.can_cut else ''} leave no "
            f"trace in the memory: with other ones row {row} changes",
        )
    report.checked.append(
        "a text in chunks is scored as the whole; what is not committed is not read"
    )
    if not subject.can_cut:
        report.skipped.append(
            "a memory that is cut back: the model has no `until`, so it serves as a target and not "
            "as a draft model"
        )


def _check_tree(subject: ModelSubject, report: Report) -> None:
    mask = above(PARENTS)
    batch, drafted = len(PAST), subject.draft()
    masks = np.tile(mask, (batch, 1, 1))
    positions = PAST[:, None] + mask.sum(-1) - 1
    memory = subject.memory()
    logits = subject.apply(drafted, positions, masks, memory).logits
    for node in (2, 7, 9):
        changed = np.where(mask[node], drafted, (drafted + 1) % subject.model.vocab_size)
        other = subject.apply(changed, positions, masks, memory).logits
        for row in range(batch):
            subject.same(
                other[row, node],
                logits[row, node],
                f"the mask is honoured: row {row}, node {node} sees nodes that are not above it",
            )
    report.checked.append("the mask is honoured: siblings do not see each other")
    _check_positions(subject, memory, report)
    for node in range(len(PARENTS)):
        path = np.flatnonzero(mask[node])
        for row, past in enumerate(PAST.tolist()):
            text = np.concatenate([subject.tokens[row, :past], drafted[row, path]])
            padded = np.zeros((batch, subject.tokens.shape[1]), int)
            padded[0, : len(text)] = text
            reference = subject.whole(padded).logits[0, len(text) - 1]
            subject.same(
                logits[row, node],
                reference,
                f"a node is scored as the end of its path: row {row}, node {node}, path "
                f"{path.tolist()}",
            )
    report.checked.append("a tree's nodes are scored as whole forward passes over their paths")


def _check_positions(subject: ModelSubject, memory: PyTree, report: Report) -> None:
    """Checks a chain whose nodes are in another order, with their positions and mask."""
    batch, count = len(PAST), len(_ORDER)
    tokens = subject.draft()[:, :count]
    positions, mask = text_of((batch, count))
    positions = positions + PAST[:, None]
    straight = subject.apply(tokens, positions, mask, memory).logits
    mixed = subject.apply(
        tokens[:, _ORDER], positions[:, _ORDER], mask[:, _ORDER][:, :, _ORDER], memory
    ).logits
    for row in range(batch):
        for place, node in enumerate(_ORDER.tolist()):
            subject.same(
                mixed[row, place],
                straight[row, node],
                f"positions are those given, whatever the order: row {row}, the token at position "
                f"{positions[row, node]} in place {place}",
            )
    report.checked.append("positions are honoured")


def _check_commit(subject: ModelSubject, report: Report) -> None:
    """Checks that a path of a tree is committed as its text is read, in each row its own."""
    model, mask = subject.model, above(PARENTS)
    drafted, batch = subject.draft(), len(PAST)
    positions = PAST[:, None] + mask.sum(-1) - 1
    masks = np.tile(mask, (batch, 1, 1))
    output = subject.apply(drafted, positions, masks, subject.memory())
    counts = np.array([3, 0, 4])
    path = np.tile(np.flatnonzero(mask[7]), (batch, 1))
    memory = model.commit(
        subject.memory(), output.tentative, jnp.asarray(path), jnp.asarray(counts)
    )
    _check_rows_of(subject.memory(), memory, "commit returns")
    next_token = np.full((batch, 1), 1 % model.vocab_size)
    alone = np.ones((batch, 1, 1), bool)
    logits = subject.apply(next_token, (PAST + counts)[:, None], alone, memory).logits
    moved = jax.tree.map(lambda leaf: leaf[::-1], memory)
    mirrored = subject.apply(next_token, (PAST + counts)[::-1, None], alone, moved).logits
    for row, (past, count) in enumerate(zip(PAST.tolist(), counts.tolist(), strict=True)):
        text = [*subject.tokens[row, :past], *drafted[row, path[row, :count]], next_token[row, 0]]
        padded = np.zeros((batch, subject.tokens.shape[1]), int)
        padded[0, : len(text)] = text
        subject.same(
            logits[row, 0],
            subject.whole(padded).logits[0, len(text) - 1],
            f"a committed path is as its text: row {row}, {count} nodes of {path[row].tolist()}",
        )
        subject.same(
            mirrored[batch - 1 - row, 0],
            logits[row, 0],
            f"a row of the memory goes where it is put: row {row} in place {batch - 1 - row}",
        )
    report.checked.append("a committed path is as its text; rows of the memory can be moved")


def _check_rows_of(reference: PyTree, memory: PyTree, who: str) -> None:
    """Checks the structure, shapes and dtypes of a memory."""
    shapes = [
        jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), part)
        for part in (reference, memory)
    ]
    promise(
        jax.tree.structure(reference) == jax.tree.structure(memory) and shapes[0] == shapes[1],
        f"{who} a memory of the structure, shapes and dtypes that init_memory gives: they are "
        f"{shapes[1]!r:.200} and should be {shapes[0]!r:.200}",
    )


def _check_levels(subject: ModelSubject, report: Report) -> None:
    mask = above(PARENTS)
    batch, drafted = len(PAST), subject.draft()
    positions = PAST[:, None] + mask.sum(-1) - 1
    memory = subject.memory()
    at_once = subject.apply(drafted, positions, np.tile(mask, (batch, 1, 1)), memory).logits
    nodes, before = None, []
    for level in LEVELS:
        seen = np.tile(mask[level][:, before + level], (batch, 1, 1))
        try:
            output = subject.apply(drafted[:, level], positions[:, level], seen, memory, nodes)
        except TypeError as error:
            if nodes is None:
                raise
            report.skipped.append(
                f"a tree by levels: apply takes no `nodes` ({error}), so the model serves as a "
                "target and not as a draft model"
            )
            return
        except Exception:
            if nodes is not None:
                _check_tentative(subject.model, nodes)
            raise
        for row in range(batch):
            for place, node in enumerate(level):
                subject.same(
                    output.logits[row, place],
                    at_once[row, node],
                    f"a tree by levels is scored as at once: row {row}, node {node}, after the "
                    f"nodes {before}",
                )
        scored: Any = output.tentative
        if nodes is not None:
            # Only now: a model that takes no `nodes` has refused this level.
            _check_tentative(subject.model, nodes)
            _check_room(nodes, scored, len(before), len(before + level))
        nodes, before = scored if nodes is None else nodes.concat(scored), before + level
    report.checked.append("a tree by levels (nodes=) is scored as at once")


def _check_tentative(model: CausalLM, tentative: Any) -> None:
    """Checks that what a draft model keeps of nodes has the methods by which levels are joined."""
    if not takes(model.apply, 6):
        return
    for method in ("concat(later)", "padded(size)", "put(later, at)"):
        promise(
            callable(getattr(tentative, method.split("(")[0], None)),
            "what is tentative of a model whose apply takes `nodes` has concat(later), "
            f"padded(size) and put(later, at), as jspec.TreeKV has: a {type(tentative).__name__} "
            f"has no {method}; add it, or leave `nodes` out of apply, and the model serves as a "
            "target and not as a draft model",
        )


def _check_room(nodes: Any, later: Any, count: int, size: int) -> None:
    """Checks that nodes written into room are those that are joined."""
    joined, in_room = nodes.concat(later), nodes.padded(size).put(later, count)
    pairs = zip(jax.tree.leaves(joined), jax.tree.leaves(in_room), strict=True)
    promise(
        all(np.array_equal(a, b) for a, b in pairs),
        f"padded({size}) and then put(later, {count}) give what concat(later) gives: the arrays of "
        f"a {type(nodes).__name__} of {count} and {size - count} nodes differ",
    )


def _check_decode(subject: ModelSubject, report: Report) -> None:
    """Checks plain decoding against whole forward passes; a near tie may fall either way."""
    steps, model = 8, subject.model
    prompt = subject.tokens[:, : PAST.max()]
    result = decoding.decode(
        model, subject.params, prompt, prompt_lengths=PAST, max_new_tokens=steps
    )
    emitted, lengths = np.asarray(result.tokens), np.asarray(result.lengths)
    text = np.zeros_like(subject.tokens)
    for row, past in enumerate(PAST.tolist()):
        text[row, :past] = prompt[row, :past]
        text[row, past : past + lengths[row]] = emitted[row, : lengths[row]]
    logits: Float[np.ndarray, "B T V"] = np.asarray(subject.whole(text).logits, np.float64)
    for row, past in enumerate(PAST.tolist()):
        promise(
            lengths[row] == steps,
            f"decode gives as many tokens as were asked for: row {row} should have {steps} and has "
            f"{lengths[row]}",
        )
        for step in range(steps):
            scores = logits[row, past + step - 1]
            lost = scores.max() - scores[emitted[row, step]]
            promise(
                lost <= 2 * subject.bound(),
                f"decode equals a loop over whole forward passes: row {row}, token {step} should "
                f"be {scores.argmax()} and is {emitted[row, step]}, whose logit is {lost:.3g} "
                "lower",
            )
    report.checked.append("decode equals a loop over whole forward passes")
