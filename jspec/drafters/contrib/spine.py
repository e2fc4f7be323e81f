"""A tree around a copy of the row's own text, with branches of likely tokens."""

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec import sampling as samplings
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, Integer
from jspec._validate.options import check_fields
from jspec._xla.manual_axes import cond
from jspec.arrays.top_k import top_k_and_logsumexp
from jspec.drafters.contrib import spine_trees
from jspec.drafters.contrib.ngram_table import NGramTable, cells
from jspec.drafters.contrib.spine_trees import MATCHES, TEMPLATES
from jspec.drafters.retrieval.prompt_lookup import TextState
from jspec.drafters.retrieval.token_pairs import NONE
from jspec.protocols import Drafter, Verifier
from jspec.round.request import check_vocabulary
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree
from jspec.verify.schemes import COUPLED

_MAX_MATCH = 16
"""The longest match that is told from longer ones."""
_MOST = 60.0
"""The most that the noise raises log-probabilities by, so that they stay finite."""


@struct.dataclass
class SpineState:
    """The text of each row, and the likely tokens after each token, learnt in this text."""

    text: TextState
    lines: Int[Array, "B V 2*k"]
    """Tokens, then the bits of their probabilities; 0 where there is none."""


@dataclass(frozen=True)
class Spine(Drafter):
    """Drafts one of six static trees: a spine that copies the text, and branches beside it.

    jspec's own. The spine is what followed the longest, newest match of the text's end (as GOOSE's,
    arXiv 2604.02047), continued periodically where it reaches the end itself. Branches are the
    likeliest tokens after a node's token by two sources, whose probabilities are added: the
    row's own lines, what the target gave when it last read that token in this text (the adjacency
    matrix of Token Recycling, arXiv 2408.08696, with probabilities), and an n-gram table of the
    target's distributions, the params of this drafter. How long the match is says which tree is
    drafted. Its nodes are in the order of the rates at which texts took their paths, so that a
    narrower round verifies a part of the same tree.

    All copied tokens are read at once, and then all nodes of one more branch step in each pass:
    few operations of fixed shape, and no sort. Where tokens are drawn, the noise that decides them
    is known before the target's distribution is, and candidates are ranked by log p + T G, see
    `jspec.sampling.gumbel`.

    Args:
        vocab_size: V of the target.
        num_speculative_tokens: drafted nodes, without the root.
        k: candidates kept per token.
        passes: most branch steps of a path. Deeper nodes of the templates are left out.
        max_depth: most levels. Deeper nodes of the templates are left out.
        templates: the six trees, see `jspec.drafters.contrib.spine_trees`.

    Raises:
        InputError: if an option is of another type or out of range, or the templates have fewer
            nodes or higher ranks than the drafter.

    Example:
        >>> import jspec
        >>> drafter = jspec.Spine(32_000, num_speculative_tokens=7)
        >>> drafter.init(1, 64, None).lines.shape
        (1, 32000, 16)
    """

    vocab_size: int
    num_speculative_tokens: Annotated[int, COUNT] = 15
    k: Annotated[int, Integer(1)] = 8
    passes: Annotated[int, Integer(1)] = 3
    max_depth: Annotated[int, COUNT] = 16
    templates: tuple[str, ...] = field(default=TEMPLATES, repr=False)

    follows_text: ClassVar = False

    def __post_init__(self):
        check_integer("vocab_size", self.vocab_size, 1, None)
        check_integer("k", self.k, 1, self.vocab_size, "the vocabulary")
        check_fields(self)
        max_nodes = spine_trees.check(self.templates)
        what = "the nodes of the largest template"
        check_integer("num_speculative_tokens", self.num_speculative_tokens, 1, max_nodes, what)

    @property
    def plan(self) -> spine_trees.Plan:
        shape = self.num_speculative_tokens, self.passes, self.max_depth
        return spine_trees.plan(self.templates, *shape)

    @property
    def verifier(self) -> Verifier:
        """The coupled rule: the candidates know the noise that decides, as no other rule allows."""
        return COUPLED.verifier

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> SpineState:
        """Returns an empty text, and lines without candidates: nothing outlives a call."""
        if earlier is not None:
            self._check_state(earlier)
        shape = batch, self.vocab_size, 2 * self.k
        return SpineState(TextState.empty(batch, capacity), jnp.zeros(shape, jnp.int32))

    def prefill(
        self, params: NGramTable | None, state: SpineState, chunk: PromptChunk
    ) -> SpineState:
        """Returns the state with a chunk of the prompt, whose logits teach nothing."""
        size = chunk.output.logits.shape[-1]
        check_vocabulary("Spine", self.vocab_size, size)
        check_table("Spine", params, size)
        return replace(state, text=state.text.read(chunk))

    def draft(
        self, params: NGramTable | None, state: SpineState, frame: Frame
    ) -> tuple[Tree, None]:
        """Returns the tree: the root and copied tokens, then a branch step more in each pass."""
        self._check_state(state)
        plan, batch = self.plan, len(frame.root)
        before, match, copied = _spine(state.text, plan.depth)
        kind = (match[:, None] >= np.array([MATCHES], np.int32)).sum(-1, dtype=jnp.int32)
        table = cells(jnp.asarray(plan.table), kind)
        parents, rates, depths, copies, *passes = jnp.split(
            table, np.cumsum(plan.sizes)[:-1], axis=1
        )
        tokens = jnp.where(copies >= 0, _at(copied, jnp.maximum(copies, 0)), NONE)
        tokens = tokens.at[:, 0].set(frame.root)
        for number, (above, pick) in enumerate(zip(passes[::2], passes[1::2], strict=True)):
            last, depth = _at(tokens, above), _at(depths, above)
            # The token before the root, then those of the nodes: a root's parent is -1.
            path = jnp.concatenate([before[:, None], tokens], axis=1)
            older = _at(path, _at(parents, above) + 1)
            names, probs = self._candidates(params, state, older, jnp.maximum(last, 0))
            probs = jnp.where((last >= 0)[..., None], probs, 0.0)
            if number == 0:
                # After a copied token, the next one is there already.
                along = depth == _at(copies, above) + 1
                following = _at(copied, jnp.minimum(depth, plan.depth - 1))
                twice = along[..., None] & (names == following[..., None])
                probs = jnp.where(twice, 0.0, probs)
            probs = self._weigh(names, probs, frame.positions[:, None] + depth, frame)
            best, _ = _likeliest(names, probs, plan.ranks[number])
            best = _at(best.reshape(batch, -1), jnp.maximum(pick, 0))
            tokens = jnp.where(pick >= 0, best, tokens)
        tree = Tree(
            tokens=tokens,
            parents=parents,
            valid=tokens >= 0,
            depth=plan.depth,
            width=plan.width,
            value=rates.astype(jnp.float32) / 1000,
            nested=True,
        )
        return tree, None

    def update(
        self, params: NGramTable | None, state: SpineState, aux: None, feedback: Feedback
    ) -> SpineState:
        """Returns the state with what was emitted, and the lines of all nodes' tokens.

        Of several visits of a line, that of an accepted node counts, else the last.
        """
        del params, aux
        tree, verdict = feedback.scored.tree, feedback.scored.verdict
        nodes, tokens = _count(tree.tokens.shape[1])[None], jnp.maximum(tree.tokens, 0)
        on_path = _count(verdict.path.shape[1])[None] < verdict.path_lengths[:, None]
        accepted = ((verdict.path[:, None] == nodes[..., None]) & on_path[:, None]).any(-1)
        live = tree.valid & ~feedback.done[:, None]
        if feedback.skip_expensive_updates is not None:
            live &= ~feedback.skip_expensive_updates
        order = jnp.where(live, nodes + nodes.shape[1] * accepted.astype(jnp.int32), -1)
        same = tokens[:, None] == tokens[:, :, None]
        live &= ~(same & (order[:, None] > order[:, :, None])).any(-1)
        logits = feedback.scored.output.logits
        # A pass over the vocabulary, so it waits until a line is written.
        visited = cond(
            live.any(),
            lambda: self._line(logits),
            lambda: jnp.zeros((*tokens.shape, 2 * self.k), jnp.int32),
            logits,
        )

        def write(lines, tokens, visited):
            return lines.at[tokens].set(visited, mode="drop")

        lines = jax.vmap(write)(state.lines, jnp.where(live, tokens, self.vocab_size), visited)
        return SpineState(state.text.extend(feedback), lines)

    def _check_state(self, state: PyTree) -> None:
        """Raises InputError unless the state is one of this drafter."""
        shape, what = (self.vocab_size, 2 * self.k), f"a {type(state).__name__}"
        if isinstance(state, SpineState):
            if state.lines.shape[1:] == shape:
                return
            what = f"a SpineState with lines of {state.lines.shape[1:]}"
        raise InputError(
            f"drafter_state is {what}, and this Spine needs a SpineState with lines of {shape}; "
            "pass the state of a drafter with the same vocab_size and k"
        )

    def _line(self, logits: Float[Array, "B N V"]) -> Int[Array, "B N 2*k"]:
        """Returns the k likeliest tokens."""
        highest, names, total = top_k_and_logsumexp(logits.astype(jnp.float32), self.k)
        bits = jax.lax.bitcast_convert_type(jnp.exp(highest - total[..., None]), jnp.int32)
        return jnp.concatenate([names.astype(jnp.int32), bits], axis=-1)

    def _candidates(
        self,
        params: NGramTable | None,
        state: SpineState,
        before: Int[Array, "B M"],
        tokens: Int[Array, "B M"],
    ) -> tuple[Int[Array, "B M c"], Float[Array, "B M c"]]:
        """Returns the candidates after tokens, of the row's own lines and of the table."""
        names, probs = self._parts(_at(state.lines, tokens))
        if params is None:
            return names, probs
        likely, chances, _ = params.after(before, tokens)
        return _unite(
            jnp.concatenate([names, likely], axis=-1), jnp.concatenate([probs, chances], axis=-1)
        )

    def _weigh(
        self,
        names: Int[Array, "B M c"],
        probs: Float[Array, "B M c"],
        positions: Int[Array, "B M"],
        frame: Frame,
    ) -> Float[Array, "B M c"]:
        """Returns weights in the order of log p + T G; in greedy decoding the probabilities."""
        keys, sampling, size = frame.keys, frame.sampling, self.vocab_size
        if keys is None or sampling is None:
            return probs

        def noise(positions, names):
            return samplings.gumbel_of(keys, positions, jnp.maximum(names, 0), size)

        temperature = jnp.broadcast_to(sampling.temperature, len(names)).astype(jnp.float32)
        raised = temperature[:, None, None] * jax.vmap(noise, (1, 1), 1)(positions, names)
        return probs * jnp.exp(jnp.minimum(raised, _MOST))

    def _parts(
        self, cells: Int[Array, "*S 2*k"]
    ) -> tuple[Int[Array, "*S k"], Float[Array, "*S k"]]:
        names, bits = cells[..., : self.k], cells[..., self.k :]
        return names, jax.lax.bitcast_convert_type(bits, jnp.float32)


def check_table(drafter: str, params: PyTree, vocab_size: int) -> None:
    """Raises InputError unless the params are None, or a table for the target's vocabulary."""
    if params is None:
        return
    if not isinstance(params, NGramTable):
        raise InputError(
            f"drafter_params of {drafter} is a {type(params).__name__}; pass None, or a table from "
            "jspec.drafters.contrib.ngrams.load or table"
        )
    if (size := params.line_of_token.shape[0]) != vocab_size:
        raise InputError(
            f"the n-gram table has a vocabulary of {size} and the model one of {vocab_size}; make "
            "one of this model's distributions"
        )


def _spine(
    text: TextState, count: int
) -> tuple[Int[Array, " B"], Int[Array, " B"], Int[Array, "B count"]]:
    """Returns the token before the root, the longest match, and what followed its newest place."""
    tokens, last = text.tokens, text.lengths[:, None] - 1
    size, back = tokens.shape[1], _count(_MAX_MATCH)[None]
    place = _count(size)[None]
    ending = _at(tokens, jnp.maximum(last - back, 0))
    earlier = place.T - back
    alike = tokens[:, np.maximum(earlier, 0)] == ending[:, None]
    alike &= (earlier >= 0)[None]
    match = jnp.where(alike, _MAX_MATCH, back[None]).min(-1)
    # The longest, and of equally long ones the newest, as one number.
    best = jnp.where(place < last, match * size + place, 0).max(-1)
    match, start = best // size, (best % size)[:, None] + 1
    step = jnp.broadcast_to(_count(count), (len(tokens), count))
    period = jnp.broadcast_to(jnp.maximum(last + 1 - start, 1), step.shape)
    copied = _at(tokens, jnp.minimum(start + jax.lax.rem(step, period), size - 1))
    before = jnp.where(last[:, 0] > 0, ending[:, 1], NONE)
    return before, match, jnp.where(match[:, None] > 0, copied, NONE)


def _count(size: int) -> Int[np.ndarray, " size"]:
    return np.arange(size, dtype=np.int32)


_at = jax.vmap(cells)
"""Cells of each row."""


def _earlier(names: Int[Array, "*S c"]) -> Bool[np.ndarray, "*#S c c"]:
    """Returns which candidates (second) come before which."""
    before = np.tri(names.shape[-1], k=-1, dtype=bool)
    return before.reshape(*(names.ndim - 1) * [1], *before.shape)


def _unite(
    names: Int[Array, "*S c"], probs: Float[Array, "*S c"]
) -> tuple[Int[Array, "*S c"], Float[Array, "*S c"]]:
    """Returns candidates of which the first of equal ones has the sum of all, the others 0."""
    same = names[..., :, None] == names[..., None, :]
    total = jnp.where(same, probs[..., None, :], 0.0).sum(-1)
    return names, jnp.where((same & _earlier(names)).any(-1), 0.0, total)


def _likeliest(
    names: Int[Array, "*S c"], probs: Float[Array, "*S c"], count: int
) -> tuple[Int[Array, "*S count"], Float[Array, "*S count"]]:
    """Returns the likeliest candidates, falling; -1 and 0 where there are fewer."""
    ahead = probs[..., None, :] > probs[..., :, None]
    ahead |= (probs[..., None, :] == probs[..., :, None]) & _earlier(names)
    rank = jnp.where(probs > 0, ahead.sum(-1, dtype=jnp.int32), -1)
    here = rank[..., None, :] == _count(count).reshape(*rank.ndim * [1], -1).mT
    names = jnp.where(here, names[..., None, :], -1).max(-1)
    return names, jnp.where(here, probs[..., None, :], 0.0).max(-1)
