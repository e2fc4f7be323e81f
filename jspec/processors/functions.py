"""Applies functions of the text before a node to its logits: one member for all of a call's."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jspec import _struct as struct
from jspec._validate.errors import InputError
from jspec.processors import history as histories
from jspec.processors.history import History, Text
from jspec.protocols import LogitsProcessor, PrefillInfo, StepInfo, TreeInfo
from jspec.types import PyTree

Logits = Float[Array, "B N V"]


@dataclass(frozen=True)
class Function:
    """The part of a processor that is in the program; its values are data."""

    function: Callable[[Logits, History, PyTree], Logits]
    is_on: Callable[[PyTree], Bool[Array, " B"]] | None
    """The rows in which the values change anything; None: all."""


@struct.dataclass
class TextRows:
    """Per-row data of functions of the text."""

    values: tuple[PyTree, ...]
    text: Text | None


@struct.dataclass
class Functions(LogitsProcessor):
    """Functions one behind the other, with the text that all of them read."""

    rows: TextRows
    shared: None = None
    functions: tuple[Function, ...] = struct.field(pytree_node=False, default=())

    reads_text = True

    @property
    def text(self) -> Text | None:
        return self.rows.text

    def fuse(self, later: LogitsProcessor) -> "Functions | None":
        """Returns both in one, since one text is enough for all; None: they cannot be one."""
        if not isinstance(later, Functions):
            return None
        rows = replace(self.rows, values=self.rows.values + later.rows.values)
        return replace(self, rows=rows, functions=self.functions + later.functions)

    def begin(self, info: PrefillInfo) -> Self:
        """Adds the text of the prompt, and of earlier text."""
        if info.text is None:
            text = histories.begin(info.prompt, info.prompt_lengths, info.size, info.vocab_size)
        else:
            text = histories.go_on(info.text, info.committed, info.prompt, info.prompt_lengths)
        return self._with(text)

    def active_rows(self) -> Bool[Array, " B"] | None:
        """Returns the rows in which some function changes anything."""
        masks = []
        for entry, values in zip(self.functions, self.rows.values, strict=True):
            if entry.is_on is None:
                return None
            masks.append(entry.is_on(values))
        return functools.reduce(jnp.logical_or, masks)

    def process(self, logits: Logits, info: TreeInfo) -> Logits:
        """Applies the functions, from left to right."""
        history = histories.of_nodes(self._text, info.text_lengths, info.end_tokens, info.tree)
        for entry, values in zip(self.functions, self.rows.values, strict=True):
            logits = _check_logits(entry, logits, entry.function(logits, history, values))
        return logits

    def advance(self, info: StepInfo) -> Self:
        """Adds the round's tokens to the text."""
        return self._with(
            histories.extend(self._text, info.text_lengths, info.emitted, info.counts)
        )

    @property
    def _text(self) -> Text:
        assert self.rows.text is not None, "it has begun"
        return self.rows.text

    def _with(self, text: Text) -> Self:
        return replace(self, rows=replace(self.rows, text=text))


def _check_logits(entry: Function, before: Array, after: Any) -> Array:
    """Returns what a function returned, if it is logits."""
    if getattr(after, "shape", None) != before.shape or after.dtype != before.dtype:
        name = getattr(entry.function, "__name__", "a processor")
        raise InputError(
            f"{name} returned {jnp.shape(after)} of {getattr(after, 'dtype', type(after))}; a "
            f"processor returns logits, {before.shape} of {before.dtype}"
        )
    return after
