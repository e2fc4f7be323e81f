"""The contract of a `CausalLM` with the engine, as one function."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jspec import decoding as engine
from jspec._validate.errors import InputError
from jspec.protocols import CausalLM
from jspec.testing.model_subject import LEVELS, PARENTS, PAST, SLOTS, ModelSubject, above, text_of
from jspec.testing.promises import Report, accepted_by_the_engine, promise
from jspec.types import Cache, Output, PyTree, TreeKV

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

    The promises: shapes and dtypes of `Output` and of the cache; a tree's node is scored as the end
    of its own path by a whole forward, so that no sibling is seen and positions are those given; a
    text in chunks is scored as the whole; slots beyond `Cache.lengths` are never read, not even
    NaN; rows are independent; a tree by levels (`nodes=`) is scored as at once; the model is
    static, hashable and equal to its copy; `jspec.decode` gives the tokens of a naive loop over
    whole forwards.

    Args:
        model: the model under test. It needs room for 24 positions.
        params: its weights.
        tolerance: how far two scores of the same token may differ, as a part of the largest logit;
            None: 1e-4 in float32 and float64, 0.05 in narrower types.
        seed: of the random tokens.

    Returns:
        A `Report`. A model that takes no `nodes` serves as a target only, which is no broken
        promise: the report says that it was skipped.

    Raises:
        AssertionError: if a promise is broken. The sentence names the promise and the row and node,
            what was expected and what was observed.
        InputError: if the model has no room for the check, or its weights lie on a mesh of explicit
            axes.

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
    promise(equal, f"a model is equal to its copy: that of {name} is unequal or hashes otherwise")
    size = model.vocab_size
    promise(
        isinstance(size, int | np.integer) and size > 0,
        f"vocab_size is a positive int: that of {name} is {size!r}",
    )
    room, needed = model.context, int(PAST.max()) + len(PARENTS)
    promise(
        room is None or (isinstance(room, int | np.integer) and room > 0),
        f"context is a positive int, or None: that of {name} is {room!r}",
    )
    if room is not None and room < needed:
        raise InputError(f"context is {room} and the check needs {needed}; make a longer one")
    report.checked.append("static, hashable and equal to its copy; vocab_size and context")


def _check_output(subject: ModelSubject, output: Output, report: Report) -> None:
    model, (batch, count) = subject.model, subject.tokens.shape
    promise(isinstance(output, Output), f"apply returns a jspec.Output, not {type(output)}")
    wanted = (batch, count, model.vocab_size)
    promise(
        output.logits.shape == wanted and jnp.issubdtype(output.logits.dtype, jnp.floating),
        f"Output.logits are floats of shape {wanted}: they are {output.logits.dtype} of shape "
        f"{output.logits.shape}",
    )
    hidden = output.hidden
    promise(
        hidden is None or (hidden.ndim == 3 and hidden.shape[:2] == (batch, count)),
        f"Output.hidden is None or of shape ({batch}, {count}, E): its shape is "
        f"{None if hidden is None else hidden.shape}",
    )
    cache = model.init_cache(batch, SLOTS)
    promise(
        isinstance(cache, Cache)
        and cache.lengths.shape == (batch,)
        and not np.asarray(cache.lengths).any()
        and cache.lengths.dtype == jnp.int32,
        "init_cache returns an empty jspec.Cache: its lengths are int32 zeros, one a row",
    )
    for part in ("keys", "values"):
        kept, new = getattr(cache, part), getattr(output, part)
        promise(
            isinstance(kept, tuple) and isinstance(new, tuple) and len(kept) == len(new) > 0,
            f"Output.{part} and Cache.{part} are tuples with an array for each layer: they have "
            f"{len(new)} and {len(kept)}",
        )
        for layer, (slots, nodes) in enumerate(zip(kept, new, strict=True)):
            heads, dim = slots.shape[1], slots.shape[-1]
            promise(
                slots.shape == (batch, heads, SLOTS, dim)
                and nodes.shape == (batch, heads, count, dim),
                f"{part} of layer {layer} are [B, H, S, D] in the cache and [B, H, N, D] in the "
                f"output, with B = {batch}, S = {SLOTS}, N = {count}: they are {slots.shape} and "
                f"{nodes.shape}",
            )
    promise(
        np.isfinite(np.asarray(output.logits, np.float64)).all(),
        "the logits of random tokens are numbers: some are NaN or infinite",
    )
    report.checked.append("shapes and dtypes of Output and of the cache")


def _check_rows(subject: ModelSubject, whole: Output, report: Report) -> None:
    changed = subject.tokens.copy()
    changed[0] = (changed[0] + 1) % subject.model.vocab_size
    found = subject.whole(changed).logits
    for row in range(1, len(changed)):
        subject.same(
            found[row],
            whole.logits[row],
            f"rows are independent: other tokens in row 0 changed row {row}",
        )
    report.checked.append("rows are independent")


def _check_chunks(subject: ModelSubject, whole: Output, report: Report) -> None:
    """Checks the end of a text after its beginning in a cache, which is only read."""
    count = len(PARENTS)
    positions, mask = text_of((len(PAST), count))
    positions = positions + PAST[:, None]
    cache = subject.cache()
    found = subject.apply(subject.drafted(), positions, mask, cache)
    for row, past in enumerate(PAST.tolist()):
        for node in range(count):
            subject.same(
                found.logits[row, node],
                whole.logits[row, past + node],
                f"a text in chunks is scored as the whole: row {row}, token {past + node}, with "
                f"{past} tokens in the cache",
            )
    # Numbers, as an engine may leave there; NaN would have to be looked for in every slot.
    stale = subject.apply(subject.drafted(), positions, mask, subject.cache(1e4))
    for row in range(len(PAST)):
        subject.same(
            stale.logits[row],
            found.logits[row],
            f"slots at or beyond Cache.lengths are never read: with other numbers there row "
            f"{row} changes",
        )
    report.checked.append("a text in chunks is scored as the whole; the cache's rest is not read")


def _check_tree(subject: ModelSubject, report: Report) -> None:
    mask = above(PARENTS)
    batch, drafted = len(PAST), subject.drafted()
    masks = np.tile(mask, (batch, 1, 1))
    positions = PAST[:, None] + mask.sum(-1) - 1
    cache = subject.cache()
    found = subject.apply(drafted, positions, masks, cache).logits
    for node in (2, 7, 9):
        changed = np.where(mask[node], drafted, (drafted + 1) % subject.model.vocab_size)
        other = subject.apply(changed, positions, masks, cache).logits
        for row in range(batch):
            subject.same(
                other[row, node],
                found[row, node],
                f"the mask is honoured: row {row}, node {node} sees nodes that are not above it",
            )
    report.checked.append("the mask is honoured: siblings do not see each other")
    _check_positions(subject, cache, report)
    for node in range(len(PARENTS)):
        path = np.flatnonzero(mask[node])
        for row, past in enumerate(PAST.tolist()):
            text = np.concatenate([subject.tokens[row, :past], drafted[row, path]])
            padded = np.zeros((batch, subject.tokens.shape[1]), int)
            padded[0, : len(text)] = text
            wanted = subject.whole(padded).logits[0, len(text) - 1]
            subject.same(
                found[row, node],
                wanted,
                f"a node is scored as the end of its path: row {row}, node {node}, path "
                f"{path.tolist()}",
            )
    report.checked.append("a tree's nodes are scored as whole forwards over their paths")


def _check_positions(subject: ModelSubject, cache: Cache, report: Report) -> None:
    """Checks a chain whose nodes stand in another order, with their positions and their mask."""
    batch, count = len(PAST), len(_ORDER)
    tokens = subject.drafted()[:, :count]
    positions, mask = text_of((batch, count))
    positions = positions + PAST[:, None]
    straight = subject.apply(tokens, positions, mask, cache).logits
    mixed = subject.apply(
        tokens[:, _ORDER], positions[:, _ORDER], mask[:, _ORDER][:, :, _ORDER], cache
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


def _check_levels(subject: ModelSubject, report: Report) -> None:
    mask = above(PARENTS)
    batch, drafted = len(PAST), subject.drafted()
    positions = PAST[:, None] + mask.sum(-1) - 1
    cache = subject.cache()
    at_once = subject.apply(drafted, positions, np.tile(mask, (batch, 1, 1)), cache).logits
    nodes, before = None, []
    for level in LEVELS:
        seen = np.tile(mask[level][:, before + level], (batch, 1, 1))
        try:
            output = subject.apply(drafted[:, level], positions[:, level], seen, cache, nodes)
        except TypeError as error:
            if nodes is None:
                raise
            report.skipped.append(
                f"a tree by levels: apply takes no `nodes` ({error}), so the model serves as a "
                "target and not as a draft model"
            )
            return
        for row in range(batch):
            for place, node in enumerate(level):
                subject.same(
                    output.logits[row, place],
                    at_once[row, node],
                    f"a tree by levels is scored as at once: row {row}, node {node}, after the "
                    f"nodes {before}",
                )
        scored = TreeKV(output.keys, output.values)
        nodes, before = scored if nodes is None else nodes.concat(scored), before + level
    report.checked.append("a tree by levels (nodes=) is scored as at once")


def _check_decode(subject: ModelSubject, report: Report) -> None:
    """Checks plain decoding against whole forwards; a near tie may fall either way."""
    steps, model = 8, subject.model
    prompt = subject.tokens[:, : PAST.max()]
    result = engine.decode(model, subject.params, prompt, lengths=PAST, max_new_tokens=steps)
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
            at = logits[row, past + step - 1]
            lost = at.max() - at[emitted[row, step]]
            promise(
                lost <= 2 * subject.bound(),
                f"decode equals a loop over whole forwards: row {row}, token {step} should be "
                f"{at.argmax()} and is {emitted[row, step]}, whose logit is {lost:.3g} lower",
            )
    report.checked.append("decode equals a loop over whole forwards")
