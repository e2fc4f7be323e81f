"""Forced acceptance: drafts a known text, so that tests and benches choose what is accepted."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec import _struct as struct
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.protocols import Drafter
from jspec.round.request import check_vocabulary
from jspec.tree import Template
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree


@struct.dataclass
class Script:
    """The `params` of `Scripted`: the text to draft, and how much of it is right."""

    tokens: Int[Array, "B T"]
    """The tokens that the target will emit, from an earlier run."""
    accepts: Int[Array, " R"]
    """The number of drafted tokens that are right in each round; starts over at its end."""


@struct.dataclass
class ScriptedState:
    """The progress of each row through its script."""

    emitted: Int[Array, " B"]
    rounds: Int[Array, ""]


@dataclass(frozen=True)
class Scripted(Drafter):
    """Drafts a template that is right up to the scripted length, else wrong.

    Args:
        vocab_size: V of the target; a wrong token is its right one plus 1, modulo V.
        template: shape of the tree.

    Raises:
        InputError: if these are not valid.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> drafter = jspec.Scripted(23, jspec.tree.chain(4))
        >>> script = jspec.Script(tokens=jnp.ones((1, 8), int), accepts=jnp.array([2, 4]))
    """

    vocab_size: int
    template: Template

    def __post_init__(self):
        check_integer("vocab_size", self.vocab_size, 1, None)
        if not isinstance(self.template, Template):
            raise InputError(
                f"template is {self.template!r:.80}; pass a jspec.Template, such as "
                "jspec.tree.chain(4)"
            )

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> ScriptedState:
        del capacity, earlier
        return ScriptedState(emitted=jnp.zeros(batch, jnp.int32), rounds=jnp.int32(0))

    def prefill(self, params: Script, state: ScriptedState, chunk: PromptChunk) -> ScriptedState:
        check_vocabulary("Scripted", self.vocab_size, chunk.output.logits.shape[-1])
        rows = len(chunk.read_lengths)
        if not isinstance(params, Script):
            raise InputError(
                f"drafter_params is a {type(params).__name__} and Scripted needs the text that it "
                f"drafts; pass jspec.Script(tokens [{rows}, T], accepts [R])"
            )
        for name, array, before, layout in (
            ("tokens", params.tokens, (rows,), f"[{rows}, T] integers, T at least one"),
            ("accepts", params.accepts, (), "[R] integers, at least one: the rounds' right tokens"),
        ):
            shape: tuple[int, ...] = getattr(array, "shape", ())
            fits = shape[:-1] == before and shape and 0 not in shape
            if not fits or not jnp.issubdtype(array.dtype, jnp.integer):
                kind = f"of shape {shape}" if shape else f"a {type(array).__name__}"
                raise InputError(f"{name} is {kind}; pass an array of {layout}")
        return state

    def draft(self, params: Script, state: ScriptedState, frame: Frame) -> tuple[Tree, None]:
        deepest = max(self.template.paths, key=len)  # the first of equals
        paths = ((), *self.template.paths)
        depth = jnp.array([len(path) for path in paths])
        on_spine = jnp.array([path == deepest[: len(path)] for path in paths])
        right = jnp.take_along_axis(
            params.tokens,
            state.emitted[:, None] + jnp.maximum(depth - 1, 0)[None],
            axis=1,
            mode="clip",
        )
        accept = params.accepts[state.rounds % params.accepts.shape[0]]
        tokens = jnp.where(on_spine & (depth <= accept), right, (right + 1) % self.vocab_size)
        return self.template.fill(tokens.at[:, 0].set(frame.root)), None

    def update(
        self, params: Script, state: ScriptedState, aux: None, feedback: Feedback
    ) -> ScriptedState:
        del params, aux
        return ScriptedState(emitted=state.emitted + feedback.counts, rounds=state.rounds + 1)
