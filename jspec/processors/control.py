"""What a call asks for beside tokens: the constant part, and what a round does with it.

Nothing of this is computed, or takes memory, unless it was asked for: a part that is None is not in
the program.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.errors import InputError
from jspec._validate.row_arguments import end_tokens, library_of
from jspec._xla.manual_axes import vary
from jspec.processors import history as histories
from jspec.processors import logprobs as records
from jspec.processors.grammar import masks, stops
from jspec.processors.grammar.automaton import Room, moved
from jspec.processors.grammar.compile import Grammar
from jspec.processors.grammar.masks import Grammars, Standing
from jspec.processors.grammar.stops import StopProgress, Stops, StopStrings
from jspec.processors.history import Text
from jspec.processors.logits import Applied, Processor, several
from jspec.types import Logprobs, State, Tree


@struct.dataclass
class Control:
    """What was asked for, constant while a call runs."""

    processors: tuple[Applied, ...] = ()
    """Change the logits of every node, from left to right."""
    grammar: Grammars | None = None
    """What the rows may hold."""
    stop: Stops | None = None
    """Texts that end a row."""
    stop_tokens: Int[Array, "B X"] | None = None
    """Tokens that end a row, beside `Request.eos`; -1 fills up."""
    logprobs: records.Asked | None = struct.field(pytree_node=False, default=None)
    reads_logprobs: Bool[Array, " B"] | None = None
    """The rows whose log-probabilities someone reads; None: all."""


@struct.dataclass
class Progress:
    """What a `Control` keeps from round to round."""

    text: Text | None = None
    """What processors read; None if there are none."""
    grammar: Int[Array, " B"] | None = None
    """The state of each row's grammar."""
    stop: StopProgress | None = None
    logprobs: Logprobs | None = None


def prepare(
    vocab_size: int,
    batch: int,
    *,
    eos: Int[Array, "B X"],
    processors: Sequence[Processor],
    grammar: Grammar | Sequence[Grammar | None] | None,
    stop: StopStrings | Sequence[StopStrings | None] | None,
    stop_token_ids: Any,
    logprobs: int | None,
    logprobs_mode: str,
    grammar_room: Room | None = None,
    stop_room: Room | None = None,
    reads_logprobs: bool | None = None,
) -> Control | None:
    """The checked control arguments of `decode`; None if nothing was asked for.

    Args:
        vocab_size: V.
        batch: B.
        eos: the end tokens of the rows.
        processors: as in `decode`.
        grammar: as in `decode`.
        stop: as in `decode`.
        stop_token_ids: as in `decode`.
        logprobs: as in `decode`.
        logprobs_mode: as in `decode`.
        grammar_room: for the grammar of a single row that may come to others; None: no such row.
        stop_room: for its stop strings.
        reads_logprobs: whether someone reads those of the rows, where rows differ in that.

    Raises:
        InputError: in one sentence, with the value, the bound and the fix.
    """
    stop_tokens, ends = None, eos
    if stop_token_ids is not None:
        stop_tokens = end_tokens(stop_token_ids, batch, vocab_size, "stop_token_ids")
        ends = library_of(eos).concatenate([eos, stop_tokens], axis=1)
    read: Any = None  # of NumPy, as all that is given to a program
    if logprobs is not None and reads_logprobs is not None:
        read = np.full(batch, reads_logprobs)
    control = Control(
        processors=_applied(processors, batch, vocab_size),
        grammar=masks.prepare(grammar, batch, vocab_size, ends, grammar_room),
        stop=stops.prepare(stop, batch, vocab_size, stop_room),
        stop_tokens=stop_tokens,
        logprobs=records.asked(logprobs, logprobs_mode, vocab_size),
        reads_logprobs=read,
    )
    parts = (control.grammar, control.stop, control.stop_tokens, control.logprobs)
    asked = bool(control.processors) or any(part is not None for part in parts)
    return control if asked else None


def begin(
    control: Control | None,
    prompt: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    size: int,
    vocab_size: int,
    earlier: tuple[Text, Int[Array, " B"]] | None = None,
) -> Progress | None:
    """What is kept before the first round.

    Args:
        control: of the call.
        prompt: padded on the right.
        lengths: tokens of each row of it.
        size: of the output.
        vocab_size: V.
        earlier: the text that the prompt goes on from, and its committed tokens, behind which the
            prompt begins; None: there is none.
    """
    if control is None:
        return None
    asked, text = control.logprobs, None
    root = jnp.take_along_axis(prompt, (lengths - 1)[:, None], axis=1)[:, 0]
    if control.processors and earlier is None:
        text = histories.begin(prompt, lengths, size, vocab_size)
    elif control.processors and earlier is not None:
        text = histories.go_on(earlier[0], earlier[1], prompt, lengths)
    return Progress(
        text=text,
        grammar=None if control.grammar is None else masks.begin(control.grammar),
        stop=None if control.stop is None else stops.begin(control.stop, root),
        logprobs=None if asked is None else records.empty(asked, len(prompt), size),
    )


def processed(state: State, tree: Tree, logits: Float[Array, "B N V"]) -> Float[Array, "B N V"]:
    """The logits that decide, each node's under its own ancestors; the same ones if nothing was
    asked for.

    Args:
        state: before the round.
        tree: what is verified.
        logits: the target's.

    Raises:
        InputError: if a processor returns something else than logits.
    """
    control, progress = state.request.control, state.control
    if control is None or not (control.processors or control.grammar):
        return logits
    ends = _all_end_tokens(state)

    def after(logits: Float[Array, "B N V"]) -> Float[Array, "B N V"]:
        if control.processors:
            lengths = state.positions + 1  # the root is not committed
            history = histories.of_nodes(progress.text, lengths, ends, tree)
            for processor in control.processors:
                logits = _checked(processor, logits, processor(logits, history))
        if control.grammar is not None:
            states, _ = masks.of_nodes(control.grammar, progress.grammar, tree, ends)
            logits = masks.masked(control.grammar, states, logits, ends)
        return logits

    wide = logits.astype(jnp.float32)
    changed = _changed(state)
    if changed is None:
        return after(wide)
    # Passes over all logits of all nodes, so they wait until some row asks for one.
    like = tree, state
    return jax.lax.cond(
        (changed & ~state.done).any(),
        lambda logits: vary(after(logits), *like),
        lambda logits: vary(logits, *like),
        wide,
    )


def _changed(state: State) -> Bool[Array, " B"] | None:
    """The rows whose logits are changed; None: all."""
    control, progress = state.request.control, state.control
    rows = jnp.zeros_like(state.done)
    for processor in control.processors:
        if processor.is_on is None:
            return None
        rows |= processor.is_on(processor.values)
    if control.grammar is not None:
        rows |= masks.have_one(progress.grammar)
    return rows


def standing_of(state: State) -> Standing | None:
    """Where the rows stand in their grammars; None if there are none."""
    control, progress = state.request.control, state.control
    if control is None or control.grammar is None:
        return None
    return Standing(control.grammar, progress.grammar, _all_end_tokens(state))


def ends(state: State, tokens: Int[Array, "B P"]) -> tuple[Bool[Array, "B P"], Bool[Array, "B P"]]:
    """Which of a round's tokens are end tokens, and which end a row otherwise.

    Args:
        state: before the round.
        tokens: of the round, those beyond its end included.
    """

    def are(listed: Int[Array, "B X"]) -> Bool[Array, "B P"]:
        return (tokens[:, :, None] == listed[:, None, :]).any(-1)

    control, progress = state.request.control, state.control
    stopped = jnp.zeros(tokens.shape, bool)
    if control is not None and control.stop_tokens is not None:
        stopped |= are(control.stop_tokens)
    if control is not None and control.stop is not None:
        passed = stops.follow(control.stop, progress.stop.states, tokens)
        stopped |= control.stop.complete[passed]
    return are(state.request.eos), stopped


def advance(
    before: State,
    after: State,
    logits: Float[Array, "B N V"],
    processed: Float[Array, "B N V"],
    path: Int[Array, "B P"],
    emitted: Int[Array, "B P"],
    counts: Int[Array, " B"],
) -> State:
    """The state after a round with what is kept between rounds; tokens of a stop string are gone.

    Args:
        before: the state before the round.
        after: the state after it, but for `State.control`.
        logits: the target's.
        processed: what tokens were drawn from.
        path: the verified nodes that the tokens come after.
        emitted: the round's tokens.
        counts: how many they are.
    """
    control, progress = before.request.control, before.control
    if control is None:
        return after
    if (asked := control.logprobs) is not None:

        def of_round() -> Logprobs:
            raw = asked.mode == records.RAW
            at = jnp.take_along_axis(logits if raw else processed, path[..., None], axis=1)
            scores = records.scores(at, None if raw else before.request.sampling)
            return vary(records.of_round(asked.num_top, scores, emitted), logits, before)

        if control.reads_logprobs is None:
            new = of_round()
        else:
            # Passes over the vocabulary, so they wait until someone reads what they give.
            shapes = jax.eval_shape(of_round)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            read = (control.reads_logprobs & ~before.done).any()
            new = jax.lax.cond(read, of_round, lambda: vary(nothing, logits, before))
        recorded = records.record(progress.logprobs, before.lengths, new, counts)
        progress = replace(progress, logprobs=recorded)
    if progress.text is not None:
        text = histories.extend(progress.text, before.positions + 1, emitted, counts)
        progress = replace(progress, text=text)
    if control.grammar is not None:
        states = masks.advance(control.grammar, progress.grammar, emitted, counts)
        progress = replace(progress, grammar=states)
    if control.stop is None:
        return replace(after, control=progress)
    stop, lengths = stops.advance(
        control.stop, progress.stop, emitted, counts, after.out, after.lengths, after.done
    )
    there = jnp.arange(after.out.shape[1]) < lengths[:, None]

    def kept(values: Array) -> Array:
        return jnp.where(there.reshape(*there.shape, *[1] * (values.ndim - 2)), values, 0)

    progress = replace(progress, stop=stop, logprobs=jax.tree.map(kept, progress.logprobs))
    return replace(after, out=kept(after.out), lengths=lengths, control=progress)


def take(control: Control | None, rows: Int[Array, " R"]) -> Control | None:
    """What rows ask for that are copies of others: of row `rows[i]` for each row i."""
    if control is None:
        return None

    def taken(part: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[rows], part)

    def of_automata(part: Any) -> Any:
        # The tables are of all rows together.
        if part is None:
            return None
        automata = part.automata
        which, starts = taken((automata.which, automata.starts))
        return replace(part, automata=replace(automata, which=which, starts=starts))

    return replace(
        control,
        processors=taken(control.processors),
        grammar=of_automata(control.grammar),
        stop=of_automata(control.stop),
        stop_tokens=taken(control.stop_tokens),
        reads_logprobs=taken(control.reads_logprobs),
    )


def spread(control: Control | None, batch: int) -> Control | None:
    """Room for what so many rows ask for, none of which asks for anything.

    Args:
        control: of a single row, with the rooms that it was given.
        batch: B.
    """
    if control is None:
        return None

    def per_row(part: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros((batch, *leaf.shape[1:]), leaf.dtype), part)

    return replace(
        control,
        processors=per_row(control.processors),
        grammar=None if control.grammar is None else masks.spread(control.grammar, batch),
        stop=None if control.stop is None else stops.spread(control.stop, batch),
        stop_tokens=per_row(control.stop_tokens),
        reads_logprobs=per_row(control.reads_logprobs),
    )


def put(control: Control | None, row: Int[Array, ""], one: Control | None) -> Control | None:
    """What the rows ask for, with that of a single row in the place of a row's."""
    if control is None or one is None:
        return control

    def written(part: Any, its: Any) -> Any:
        def write(leaf: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(leaf, new, row, axis=0)

        return jax.tree.map(write, part, its)

    grammar, stop = control.grammar, control.stop
    if grammar is not None and one.grammar is not None:
        grammar = masks.put(grammar, row, one.grammar)
    if stop is not None and one.stop is not None:
        stop = stops.put(stop, row, one.stop)
    return replace(
        control,
        processors=written(control.processors, one.processors),
        grammar=grammar,
        stop=stop,
        stop_tokens=written(control.stop_tokens, one.stop_tokens),
        reads_logprobs=written(control.reads_logprobs, one.reads_logprobs),
    )


def placed(progress: Progress | None, control: Control | None, row: Int[Array, ""]) -> Any:
    """What a single row keeps between rounds, as it is called in the place of a row.

    Args:
        progress: of the single row.
        control: of all rows.
        row: the place.
    """
    if progress is None or control is None:
        return progress

    def called(states: Int[Array, " B"], part: Any) -> Int[Array, " B"]:
        return moved(states, row, part.automata.room)

    if control.grammar is not None and progress.grammar is not None:
        progress = replace(progress, grammar=called(progress.grammar, control.grammar))
    if control.stop is not None and progress.stop is not None:
        states = called(progress.stop.states, control.stop)
        progress = replace(progress, stop=replace(progress.stop, states=states))
    return progress


def freed(progress: Progress | None, here: Bool[Array, " B"]) -> Progress | None:
    """What is kept between rounds when rows have left: no stop string waits for its end there."""
    if progress is None or progress.stop is None:
        return progress
    stop = progress.stop
    return replace(
        progress,
        stop=replace(
            stop,
            pending=jnp.where(here, 0, stop.pending),
            stop_bytes=jnp.where(here, 0, stop.stop_bytes),
            dropped=jnp.where(here, 0, stop.dropped),
        ),
    )


def text_of(state: State) -> Text | None:
    """What processors read of the rows' texts; None if there are none."""
    return None if state.control is None else state.control.text


def stop_of(state: State) -> StopProgress | None:
    """What is known of stop strings; None if there are none."""
    return None if state.control is None else state.control.stop


def logprobs_of(state: State) -> Logprobs | None:
    """What is recorded of the output buffer; None if nothing was asked for."""
    return None if state.control is None else state.control.logprobs


def _all_end_tokens(state: State) -> Int[Array, "B X"]:
    """The tokens that end a row, whichever its status then is."""
    stop_tokens, eos = state.request.control.stop_tokens, state.request.eos
    return eos if stop_tokens is None else jnp.concatenate([eos, stop_tokens], axis=1)


def _applied(processors: Any, batch: int, vocab_size: int) -> tuple[Applied, ...]:
    processors = several(processors)
    for processor in processors:
        if not isinstance(processor, Processor):
            raise InputError(
                f"processors holds {processor!r:.80}; pass those that jspec.processors makes, such "
                "as jspec.processors.own(function)"
            )
    return tuple(processor.applied(batch, vocab_size) for processor in processors)


def _checked(processor: Applied, before: Array, after: Any) -> Array:
    """What a processor returned, if it is logits."""
    if getattr(after, "shape", None) != before.shape or after.dtype != before.dtype:
        name = getattr(processor.function, "__name__", "a processor")
        raise InputError(
            f"{name} returned {jnp.shape(after)} of {getattr(after, 'dtype', type(after))}; a "
            f"processor returns logits, {before.shape} of {before.dtype}"
        )
    return after
