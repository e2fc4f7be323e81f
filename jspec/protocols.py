"""Interfaces of model, drafter, policy, processor, rule and verifier. Axes: `jspec.types`."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import jax
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec.types import (
    Feedback,
    Frame,
    Output,
    PolicyFeedback,
    PromptChunk,
    PyTree,
    Sampling,
    Tree,
    Verdict,
    WidthChoice,
)


class CausalLM(Protocol):
    """A language model: static, hashable, and pure. A Flax linen module is one already.

    What it remembers of a text is its own: three functions make, read and extend its memory, and
    nothing else looks into it. Keys and values as a memory are in `jspec.memory`.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def context(self) -> int | None:
        """The number of positions that the model can place; None if it has no bound."""
        ...

    def init_memory(self, batch: int, capacity: int) -> PyTree:
        """Returns the memory of rows without committed tokens.

        A pytree of arrays, in which the rows are the first axis of every leaf: rows are copied,
        moved and dropped along it. On a mesh, leaves are sharded along it. A node with a
        static attribute `mesh_axes` says otherwise: a mesh axis for each leading axis.

        Args:
            batch: B, the number of rows.
            capacity: S, the most tokens that a row will hold.
        """
        ...

    def apply(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: PyTree,
        nodes: PyTree = None,
    ) -> Output:
        """Scores N tokens of each row after the committed tokens of `memory`, which is only read.

        Token i comes after all committed tokens of its row, after the nodes j with `mask[b, i, j]`
        and after the tokens j with `mask[b, i, M + j]`, itself among them: these are one path.
        What the model must keep of the N tokens comes back as `Output.tentative`, a pytree of its
        own; `commit` takes the accepted ones of it.

        `nodes` is for draft models, which score a tree level by level: `Output.tentative` of the
        earlier levels, M nodes; None is M = 0. What is tentative then has methods `concat`,
        `padded` and `put` as `jspec.TreeKV` has. A model that only serves as a target may leave
        the argument out.
        """
        ...

    def commit(
        self,
        memory: PyTree,
        tentative: PyTree,
        path: Int[Array, "B P"],
        counts: Int[Array, " B"],
        /,
    ) -> PyTree:
        """Returns the memory after the first `counts` nodes of `path`.

        Args:
            memory: that the nodes were scored after.
            tentative: `Output.tentative` of that forward.
            path: nodes, each one's parent before it; entries at or beyond `counts` are not read.
            counts: 0 .. P; 0 leaves a row as it is.
        """
        ...

    # A model whose memory can be cut back has one method more; one that has not is refused where
    # that is asked for: as a draft model, and to go on from a text cut before a stop string.
    #
    #     until(memory, lengths) -> the memory with no more than so many committed tokens per row


class Drafter(ABC):
    """Proposes a tree each round. Static and hashable; its memory is a pytree that it passes on.

    Four pure functions, as everywhere in JAX: `init` makes the empty state, `prefill` reads a chunk
    of the prompt, `draft` proposes and `update` learns. The engine, and a merge of drafters, call
    them in this order; what is appended to a text later goes through `prefill` again. The state
    keeps the structure, shapes and dtypes that `init` gives. What `update` needs of this round's
    draft alone, such as keys and values of the drafted nodes, is `aux`: any pytree, or None.

    A leaf of the state whose shape grows with `batch` belongs to the rows, one entry for each along
    that axis: it is moved, copied and dropped with its row. All others are shared by all rows.

    A drafter of one's own is a frozen dataclass with this as its base. `draft` is all that it must
    have; what else it may have is here with its default. How many of its nodes are verified, and
    in which rounds it is asked, is for a `WidthPolicy`.
    """

    verifier: "Verifier | None" = None
    """The verifier of its draws, see `jspec.schemes`, for a drafter that samples its children
    from distributions that it reports (`Tree.q`). None: the coupled rule, lossless for any
    proposal.
    """
    context: int | None = None
    """The longest row that it can read, in tokens; None if there is no bound."""
    follows_text: bool = False
    """True if rounds in which it is not asked leave no gap in its memory: after them it drafts
    as one whose `prefill` has read the same text. The contract tests it."""
    merged: Any = None
    """Joins the memories of several replicas, for `jspec.memory_file.merge`: a function
    of a sequence of states. None: they cannot be merged."""

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> PyTree:
        """Returns the memory that a call begins with: empty, or what survives of an earlier call's.

        Its shapes depend on `batch` and `capacity` alone, so that cold and hot calls are one
        program. The axis of the rows has exactly `batch` entries, not for instance
        `batch * beams`.

        Args:
            batch: rows.
            capacity: most tokens that a row will hold, prompt included.
            earlier: the state that an earlier call returned (hot start), or None. Its leaves that
                grow with `capacity` are new ones of a few tokens: nothing survives in them.

        Raises:
            ValueError: if the earlier state does not fit this drafter.
        """
        del batch, capacity, earlier
        return ()

    def prefill(self, params: PyTree, state: PyTree, chunk: PromptChunk) -> PyTree:
        """Returns the state after a chunk of the prompt.

        Called at least once, and once for every chunk of the longest row.

        Args:
            params: the drafter's weights.
            state: what `init` gave, or `prefill` for the chunk before; of a text that goes on, what
                the last `update` gave.
            chunk: its tokens, and the target's forward pass over it.

        Raises:
            ValueError: if the shapes do not fit.
        """
        del params, chunk
        return state

    @abstractmethod
    def draft(self, params: PyTree, state: PyTree, frame: Frame) -> tuple[Tree, PyTree]:
        """Returns the tree to verify, and what `update` needs of the draft.

        Args:
            params: the drafter's weights.
            state: what `prefill` or the last `update` gave.
            frame: the root, its position, the random keys and the target's sampling.

        Returns:
            (tree, aux): a tree of the same shape in every round. Malformed nodes are marked
            absent, see `jspec.round.sanitize`. A drafter that needs nothing of it gives None.
        """

    def update(
        self, params: PyTree, state: PyTree, aux: PyTree | None, feedback: Feedback
    ) -> PyTree:
        """Returns the state after the verified round.

        Args:
            params: the drafter's weights.
            state: what `prefill` or the last `update` gave.
            aux: what `draft` gave. None in a round in which the drafter was not asked:
                `feedback.tree` is then the root alone. See `tells_rest`.
            feedback: what became of the tree, and all that was verified alongside it.

        Returns:
            A state of the structure, shapes and dtypes that `prefill` gave.
        """
        del params, aux, feedback
        return state

    def tells_rest(self, aux: PyTree) -> bool:
        """Returns whether `update` treats None and zeros in `aux` differently.

        Where it does not, one program serves rounds in which the drafter is asked and those in
        which it is not. Without arrays in `aux` nothing tells them apart.

        Args:
            aux: what `draft` gave.
        """
        return bool(jax.tree.leaves(aux))


class WidthPolicy(ABC):
    """Decides in which rounds a drafter is asked, and how many of its nodes are verified.

    Static and hashable; its memory is a pytree that is passed on. Whatever it decides, the tokens
    are the same: under the coupled rule any part of a tree is lossless. Drafters whose draws have a
    verifier of their own are verified whole, by `jspec.FixedWidth()`.

    A policy of one's own is a frozen dataclass with this as its base.
    """

    widths: tuple[int, ...] = ()
    """Rising numbers of drafted nodes of a row that a round may verify, each a program of its
    own; 0 is plain decoding. Empty: the whole tree, and `choose` is not called."""

    def init_params(self, model: CausalLM, params: PyTree) -> PyTree:
        """Returns the params of a call that has none, such as a guess at what rounds cost.

        Args:
            model: the target.
            params: its weights, or their shapes; a traced call has no values.
        """
        del model, params

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> PyTree:
        """Returns the memory that a call begins with, as `Drafter.init`.

        Args:
            batch: rows.
            capacity: most tokens that a row will hold, prompt included.
            earlier: `Result.policy_state` of an earlier call, or None.
        """
        del batch, capacity, earlier
        return ()

    def should_draft(self, params: PyTree, state: PyTree) -> "bool | Bool[Array, '']":
        """Returns whether the drafter is asked in this round, which is plain otherwise.

        A bool of Python is known when the call is traced, and costs nothing. A policy that decides
        in every round has 0 among its widths.

        Args:
            params: the policy's, such as costs.
            state: what `init` or the last `update` gave.
        """
        del params, state
        return True

    @abstractmethod
    def choose(self, params: PyTree, state: PyTree, tree: Tree, frame: Frame) -> WidthChoice:
        """Returns the number of nodes that the round verifies, and which these are.

        Args:
            params: the policy's.
            state: what `init` or the last `update` gave.
            tree: what was drafted; malformed nodes are marked absent.
            frame: of the round; rows with `done` have ended.

        Returns:
            The index of one of the rounds that there may be, and the nodes' values.
        """

    def skip_expensive_updates(self, params: PyTree, state: PyTree) -> "Bool[Array, ''] | None":
        """Returns whether the drafter may leave out what takes long to learn, if it is not asked;
        None: it learns from every round. See `Feedback.skip_expensive_updates`.
        """
        del params, state

    def update(self, params: PyTree, state: PyTree, feedback: PolicyFeedback) -> PyTree:
        """Returns the state after the round, of the same structure, shapes and dtypes.

        Args:
            params: the policy's.
            state: what `init` or the last `update` gave.
            feedback: what was drafted, chosen and emitted.
        """
        del params, feedback
        return state


@struct.dataclass
class Drafting:
    """A drafter and a policy, each with its params: the part of a call that says how it drafts."""

    drafter: Drafter = struct.field(pytree_node=False)
    drafter_params: PyTree
    policy: WidthPolicy = struct.field(pytree_node=False)
    policy_params: PyTree = None

    def complete(self, model: CausalLM, params: PyTree) -> "Drafting":
        """Returns it with the policy's own params, where the call has none."""
        if self.policy_params is not None:
            return self
        return replace(self, policy_params=self.policy.init_params(model, params))

    def init(self, batch: int, capacity: int, earlier: PyTree = (None, None)) -> PyTree:
        """Returns the memories of both; see `Drafter.init` and `WidthPolicy.init`."""
        return (
            self.drafter.init(batch, capacity, earlier[0]),
            self.policy.init(batch, capacity, earlier[1]),
        )


@struct.dataclass
class PrefillInfo:
    """Inputs of `LogitsProcessor.begin`."""

    prompt: Int[Array, "B T"]
    """Padded on the right; of a text that goes on, its last token and what follows."""
    prompt_lengths: Int[Array, " B"]
    committed: Int[Array, " B"]
    """The tokens before the prompt, which were read in an earlier call."""
    text: PyTree
    """`LogitsProcessor.text` of that call; None: there was none."""
    size: int = struct.field(pytree_node=False)
    """T of the output."""
    vocab_size: int = struct.field(pytree_node=False)


@struct.dataclass
class TreeInfo:
    """The nodes of a tree, at whose logits a processor is asked."""

    tree: Tree
    """A sanitized one."""
    text_lengths: Int[Array, " B"]
    """The tokens of each row's text, of which the root is the last."""
    end_tokens: Int[Array, "B X"]
    """The tokens that end a row; -1 fills up."""


@struct.dataclass
class StepInfo:
    """Inputs of `LogitsProcessor.advance`."""

    emitted: Int[Array, "B P"]
    """The round's tokens."""
    counts: Int[Array, " B"]
    """The number of emitted tokens; 0 in rows that had ended."""
    path: Int[Array, "B P"]
    """The verified nodes that the tokens come after."""
    logits: Float[Array, "B N V"]
    """The target's."""
    processed: Float[Array, "B N V"]
    """The logits that tokens were drawn from."""
    sampling: Sampling | None
    text_lengths: Int[Array, " B"]
    """The tokens of the text before it, of which the root is the last."""
    begins: Int[Array, " B"]
    """The tokens of the output before it."""
    had_ended: Bool[Array, " B"]
    tokens: Int[Array, "B T"]
    """The output after it."""
    ends: Int[Array, " B"]
    """The number of its tokens."""
    done: Bool[Array, " B"]


@struct.dataclass
class LogitsProcessor:
    """Changes the logits of nodes, or has a say in where rows end and what is told of them, as
    grammars, stop strings and log-probabilities have: a pytree with its own state.

    `rows` has an entry for each row on the first axis of every leaf, and is moved with its row by
    one `jax.tree.map`. `shared` belongs to all rows. Methods are pure and return a processor of the
    same structure. A hook that is None has no part in the program.
    """

    rows: PyTree
    shared: PyTree = None

    is_single: ClassVar[bool] = False
    """True if a call has at most one of the class."""
    process: ClassVar[Any] = None
    """Maps (logits [B, N, V], info) to logits, each node's under its ancestors."""
    ends: ClassVar[Any] = None
    """(tokens [B, P]) -> [B, P], the tokens of a round that end their row with `Status.STOP`."""
    grammar: ClassVar[Any] = None
    """(end_tokens) -> what drafters may know of the tokens that are allowed: `Frame.grammar`."""
    reads_text: ClassVar[bool] = False
    """True if `begin` needs `PrefillInfo.text` of a text that goes on."""
    text: ClassVar[Any] = None
    """Data about the text for a later call, with the rows' shape; see `PrefillInfo.text`."""
    logprobs: ClassVar[Any] = None
    """The log-probabilities of the output, for `Result.logprobs`."""
    stop_bytes: ClassVar[Any] = None
    """[B] for `Result.stop_bytes`."""

    def begin(self, info: PrefillInfo) -> Self:
        """Returns the processor before the first round; InputError if it cannot go on."""
        del info
        return self

    def advance(self, info: StepInfo) -> Self:
        """Returns the processor after a round."""
        del info
        return self

    def with_min_tokens(self, min_tokens: Int[Array, " B"]) -> Self:
        """Returns the processor that ends no row before so many tokens of the output."""
        del min_tokens
        return self

    def fuse(self, later: "LogitsProcessor") -> "LogitsProcessor | None":
        """Returns both as one, where that saves memory; None: they stay two."""
        del later
        return None

    def active_rows(self) -> Bool[Array, " B"] | None:
        """Returns the rows that `process` changes: rounds without any leave it out. None: all."""
        return None


class NodeRule(Protocol):
    """Turns distributions at one node into probabilities; draws nothing.

    With accept [K] the probability of taking child k given that the earlier ones were not taken,
    the rule is lossless if for draws of the children from the distribution it names,
    sum over draws of w(draw) * (accepted mass + left-over mass * residual) = p.

    A rule that accepts the first child with the token of a certain p, and no other, may say so with
    an attribute `by_token` that is True: greedy verdicts then take no steps on a GPU.
    """

    def __call__(
        self,
        p: Float[Array, " V"],
        q: Float[Array, " V"] | None,
        children: Int[Array, " K"],
        valid: Bool[Array, " K"],
        noise: Float[Array, " V"],
    ) -> tuple[Float[Array, " K"], Float[Array, " V"]]:
        """Returns the pair accept [K], residual [V]; `noise` is for coupling."""
        ...


@runtime_checkable
class Verifier(Protocol):
    """Decides which path of a scored tree is emitted; `jspec.TreeVerifier` makes one of a rule."""

    def verdict(self, tree: Tree, logits: Float[Array, "B N V"], frame: Frame) -> Verdict:
        """Returns the path to emit; consumes none of the round's keys."""
        ...
