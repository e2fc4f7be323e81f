"""The data that models, drafters, rules and the engine exchange; `jspec.protocols` says how.

Axes, the same letters in all annotations; a file that needs others says which:

    B  rows of the batch
    N  nodes of a tree; node 0 is the root
    P  nodes of a path from the root, the tree's depth + 1
    K  siblings, the children of one node in the order in which they were drawn
    Q  rows of `Tree.q`
    V  vocabulary
    E  hidden size; F, width of the states that a draft head reads
    S  tokens that a row of the memory holds: its capacity
    M  nodes that were scored before and are not committed
    H  key-value heads, D their size
    C  tokens of a prompt that are read at once
    T  padded length of a prompt, or of the output
    X  end tokens of a row
    k  likeliest tokens at a place
    W  widths that a round may have

`p` is the target's distribution and `q` the draft's, whatever letter a paper uses. A *round* is one
draft, one forward pass of the target over it, one verdict and one commit. All data are in this one
file, so that axes are read alongside the legend.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Self

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec._validate.errors import DecodeError

PyTree = Any
HostOrDevice = Array | np.ndarray

NO_PARENT = -1
"""The entry of `Tree.parents` that stands for no parent: the root's."""


class Status(IntEnum):
    """The state of a row: running, or the reason why it ended. Data, since rows end one by one."""

    message: str
    """The reason in half a sentence, for people."""
    fix: str
    """The remedy if the row failed; empty if it did not."""

    def __new__(cls, value: int, message: str, fix: str = "") -> Self:
        status = int.__new__(cls, value)
        status._value_, status.message, status.fix = value, message, fix
        return status

    RUNNING = 0, "the row goes on"
    EOS = 1, "the row emitted an end token"
    """One of `Stopping.eos`, which is the row's last token."""
    LIMIT = 2, "the row emitted as many tokens as it was allowed"
    CAPACITY = 3, "the cache has no slot for the next token", "shorten the prompt or raise capacity"
    NAN = 4, "the target's logits were not numbers", "check the weights, or load them in float32"
    STOP = 5, "the row emitted a stop token or a stop string"
    """One of `Stopping.stop_token_ids`, or `Stopping.stop`."""
    MASKED = 6, "processors or the grammar left no token to emit", "allow more tokens there"
    FREE = 7, "no request of the engine is in the row"


@struct.dataclass
class Output:
    """The result of one forward pass of a model over N tokens of each row."""

    logits: Float[Array, "B N V"]
    hidden: Float[Array, "B N E"] | None
    """Last hidden state, after the final norm (what the head reads); None if not given."""
    tentative: PyTree = None
    """The model's record of the N tokens until some are committed, such as their keys and
    values: for its own `commit`. None in what drafters see of the target.
    """


@struct.dataclass
class Tree:
    """A draft: N tokens, each with a parent. Node 0 is the last emitted token of the row.

    Siblings are in the order in which they were drawn: sampled rules read them in that order.
    Malformed nodes are marked absent, see `jspec.round.sanitize`: a drafter can waste its nodes,
    and can change no token.

    Example:
        >>> import jax.numpy as jnp
        >>> tree = Tree(  # the root 5, its children 6 and 7, and 8 below 6
        ...     tokens=jnp.array([[5, 6, 7, 8]]),
        ...     parents=jnp.array([[-1, 0, 0, 1]]),
        ...     valid=jnp.ones((1, 4), bool),
        ...     depth=2,
        ...     width=2,
        ... )
    """

    tokens: Int[Array, "B N"]
    parents: Int[Array, "B N"]
    """The parent of each node, `parents[b, i] < i`; -1 at the root."""
    valid: Bool[Array, "B N"]
    """True at nodes that are there. The root always is; a child of an absent node is absent."""
    depth: int = struct.field(pytree_node=False)
    """The most edges from the root to a leaf, so that P = depth + 1; deeper nodes are absent."""
    width: int = struct.field(pytree_node=False)
    """The most children of one node, K; further ones are not looked at."""
    q: Float[Array, "B Q V"] | None = None
    """The distributions that sampled children were drawn from; None: the children are
    deterministic proposals, each of probability 1.

    None is pytree structure, so it costs nothing and is known when the loop is traced."""
    q_row: Int[Array, "B N"] | None = None
    """Row of `q` that node i's children were drawn from; None with a `q`: row i is node i's.

    Only nodes with children need a distribution, so Q is usually far below N."""
    value: Float[Array, "B N"] | None = None
    """The drafter's own estimate that the target accepts each node, 0 .. 1 and falling along
    every path; None: it has none. Merges allocate nodes by it; the verifier never reads it."""
    nested: bool = struct.field(pytree_node=False, default=False)
    """True if nodes are in the order of their values, so that a narrower round verifies the first
    ones, and the drafter's `update` takes such a part as if it had drafted no more."""


@struct.dataclass
class Sampling:
    """The sampling settings: numbers for all rows, or arrays [B]. New numbers never recompile.

    Rows are independent. `temperature` 0 is greedy for that row; `top_k` 0 (or >= V), `top_p` 1
    and `min_p` 0 switch their filter off. See `jspec.sampling.probabilities` for the order.

    Example:
        >>> import jax.numpy as jnp
        >>> everywhere = Sampling(temperature=0.8, top_p=0.9)
        >>> by_row = Sampling(temperature=jnp.array([0.0, 1.0]))  # the first row is greedy
    """

    temperature: Float[HostOrDevice, " B"] | float = 1.0
    top_k: Int[HostOrDevice, " B"] | int = 0
    top_p: Float[HostOrDevice, " B"] | float = 1.0
    min_p: Float[HostOrDevice, " B"] | float = 0.0


@struct.dataclass
class Stopping:
    """The ends of rows, with vLLM's names: values for all rows, or arrays [B].

    New values never recompile. Whether there are stop tokens, a minimum or stop strings does.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> stopping = Stopping(max_tokens=[2, 5], eos=22)
        >>> ask = dict(max_new_tokens=8, stopping=stopping)
        >>> jspec.decode(model, model.init(), [[1, 2], [3, 4]], **ask).lengths.tolist()
        [2, 5]
    """

    max_tokens: ArrayLike | None = None
    """Maximum number of tokens that a row emits, 0 .. `max_new_tokens`; None: `max_new_tokens`."""
    min_tokens: ArrayLike | None = None
    """While the output has fewer, end and stop tokens are forbidden and stop strings do nothing."""
    eos: ArrayLike | Sequence[int] | None = None
    """Token or tokens that end a row with `Status.EOS`, or [B, X] with -1 filling up. None: the
    checkpoint's, if the call has one (`jspec.LLM`), else no token; () is vLLM's `ignore_eos`.
    """
    stop_token_ids: ArrayLike | Sequence[int] | None = None
    """Token or tokens that end a row with `Status.STOP`, or [B, X] with -1 filling up."""
    stop: Any = struct.field(pytree_node=False, default=None)
    """Texts that end a row with `Status.STOP`, as `jspec.stop_strings` makes them, or a list of
    these and None, one for each row. A `jspec.LLM` takes the texts themselves."""


@struct.dataclass
class Frame:
    """The inputs of a draft: everything that a drafter may know of the round when it drafts."""

    root: Int[Array, " B"]
    """The last emitted token, which is in no memory yet."""
    positions: Int[Array, " B"]
    """Position of the root in its row; the tokens before it are committed."""
    keys: jax.Array | None
    """The random keys [B], one per row. `sampling.gumbel(keys, positions, V)` is the noise that
    decides the token at a position under the coupled rule; draws of one's own use `sampling.fork`.
    None if the call is greedy (`sampling=None`): whatever is drawn, its tokens are the same."""
    sampling: Sampling | None
    """The target's sampling; None is greedy."""
    done: Bool[Array, " B"]
    """True for rows that ended; whatever is drafted for them is ignored."""
    grammar: PyTree = None
    """The text's state in its grammar, such as a `jspec.grammar.masks.GrammarState`; None:
    in none. Drafted nodes that it does not allow are taken for absent."""


@struct.dataclass
class PromptChunk:
    """A chunk of each row's prompt, which the target has read: what a drafter's `prefill` gets.

    C: most tokens that are read at once. A row whose prompt is read already takes no part: it has
    `read_lengths` 0, and is at its last token.
    """

    tokens: Int[Array, "B C+1"]
    """The text from `positions` on. The first `read_lengths + 1` tokens are text: those that
    were read, and the one that follows them. After the last chunk that one is the first root."""
    read_lengths: Int[Array, " B"]
    """The number of tokens that were read, 0 .. C: they are committed."""
    positions: Int[Array, " B"]
    """Position of the first token; earlier tokens were in earlier chunks."""
    output: Output
    """The target's forward pass over the first C tokens, after all before them. XLA removes what
    is not used of it."""

    @staticmethod
    def whole(
        prompt: Int[Array, "B T"], prompt_lengths: Int[Array, " B"], output: Output
    ) -> "PromptChunk":
        """Returns prompts that were read at once, with the forward pass over their tokens."""
        return PromptChunk(
            tokens=jax.numpy.pad(prompt, ((0, 0), (0, 1))),
            read_lengths=prompt_lengths - 1,
            positions=jax.numpy.zeros_like(prompt_lengths),
            output=output,
        )

    @property
    def read(self) -> Int[Array, "B C"]:
        """The tokens that were read, and behind `read_lengths` what pads them."""
        return self.tokens[:, :-1]

    @property
    def following(self) -> Int[Array, "B C"]:
        """The token after each of these."""
        return self.tokens[:, 1:]


@struct.dataclass
class Verdict:
    """The verifier's decision: the emitted path of the tree, and the token after it."""

    path: Int[Array, "B P"]
    """Node ids from the root; those at or beyond `path_lengths` are 0 and never read. In a merge
    a drafter sees -1 where the accepted node is not its own."""
    path_lengths: Int[Array, " B"]
    """The number of nodes on the path, root included: 1 .. P. The round emits as many tokens."""
    bonus: Int[Array, " B"]
    """The token that the target itself drew after the last node of the path."""
    failed: Bool[Array, " B"]
    """True where the target's logits gave no distribution (NaN) at a node the verifier reached."""


@struct.dataclass
class Scored:
    """The verified tree of a round, with the target's forward pass over it and the verdict."""

    tree: Tree
    output: Output
    verdict: Verdict


@struct.dataclass
class Feedback:
    """The outcome of a round for a drafter: its own tree, and all that was verified.

    `tree`, `output` and `verdict` are the drafter's own, in the numbers that it gave its nodes.
    Not all of its nodes need have been verified: `tree.valid` says which were. Inside a merge other
    drafters have nodes too, and the path is -1 where the accepted node is not its own.
    """

    tree: Tree
    output: Output
    """The target's output at the nodes of `tree`; meaningless where a node is not valid."""
    verdict: Verdict
    emitted: Int[Array, "B P"]
    """Tokens that the round added to the row's output; entries at or beyond `counts` are 0."""
    counts: Int[Array, " B"]
    """The number of emitted tokens, cut at end tokens and limits; 0 for a row that had ended.

    The first `counts` nodes of the path are committed: the root and all emitted but the last."""
    positions: Int[Array, " B"]
    """Position of the root, as in the round that drafted."""
    done: Bool[Array, " B"]
    """True for rows that have ended, in this round or before."""
    keys: jax.Array | None = None
    """The random keys [B], as in the round that drafted."""
    sampling: Sampling | None = None
    """The target's sampling, as in the round that drafted."""
    merged: Scored | None = None
    """The verified tree, if it was not just the drafter's own; None if it was."""
    processed: Float[Array, "B N V"] | None = None
    """The logits that the verifier used at the nodes of `tree`, after processors and grammar.
    None: the output's, or the tree was merged into a larger one (see `scored`). Learn what
    is kept for later calls from `output`: processors belong to one call."""
    others: bool = struct.field(pytree_node=False, default=False)
    """True where nodes of other drafters were verified too, so that the path may have -1."""
    skip_expensive_updates: Bool[Array, ""] | None = None
    """True in most rounds of a long back-off, see `jspec.policies.backoff`: what takes long to
    learn, such as a pass over the vocabulary, may be left out. None: in no round."""

    @property
    def scored(self) -> Scored:
        """The verified tree, whoever drafted its nodes; rejected nodes teach too."""
        return self.merged or Scored(self.tree, self.output, self.verdict)


@struct.dataclass
class WidthChoice:
    """The number of drafted nodes that a round verifies, as a policy chose it."""

    index: Int[Array, ""] | int
    """Index of the width among `jspec.WidthPolicy.widths`."""
    values: Float[Array, "B N"] | None = None
    """Of each drafted node, 0 .. 1, falling along paths; the largest are verified, NaN never. None:
    the tree's own, or the first nodes if it has none."""
    expected_tokens: Float[Array, " W"] | None = None
    """Tokens that all running rows are expected to emit, by width, for `jspec.trace`."""
    seconds: Float[Array, " W"] | None = None
    """The time that each of them takes, for `jspec.trace`."""
    aux: PyTree = None
    """The policy's record of the round, for its `update`."""


@struct.dataclass
class PolicyFeedback:
    """The outcome of a round for a policy."""

    tree: Tree | None
    """All that was drafted, verified or not; None where the drafter is known not to be asked."""
    choice: WidthChoice | None
    """The policy's choice; zeros where the drafter was not asked, or None, as `tree`."""
    emitted: Int[Array, "B P"]
    """Tokens that the round added to the row's output; entries at or beyond `counts` are 0."""
    counts: Int[Array, " B"]
    """The number of emitted tokens; 0 for a row that had ended."""


@struct.dataclass
class Stats:
    """Sufficient statistics of a run; every other figure is derived from these.

    Example:
        >>> import jax.numpy as jnp
        >>> counts = [[3, 1, 2]], [12], [6], [[0, 6]]
        >>> stats = Stats(*map(jnp.array, counts), widths=(0, 2))
        >>> stats.num_rounds.tolist(), stats.num_accepted_tokens.tolist()
        ([6], [5])
        >>> round(float(stats.mean_acceptance_length[0]), 2)
        1.83
    """

    acceptance_histogram: Int[Array, "B P"]
    """Rounds in which the row emitted i + 1 tokens, that is accepted i drafted ones."""
    num_draft_tokens: Int[Array, " B"]
    """The number of drafted tokens that were verified, in all rounds."""
    num_drafts: Int[Array, " B"]
    """Rounds that verified at least one drafted token."""
    width_histogram: Int[Array, "B W"]
    """Rounds at each of the widths, for a row that was running."""
    widths: tuple[int, ...] = struct.field(pytree_node=False)
    """The widths that a round could have, in drafted nodes; one if they are not chosen."""

    @property
    def num_rounds(self) -> Int[Array, " B"]:
        """The number of rounds, each one forward pass of the target; the prefill does not count."""
        return self.acceptance_histogram.sum(-1)

    @property
    def num_accepted_tokens(self) -> Int[Array, " B"]:
        """The number of drafted tokens that were emitted."""
        return (
            self.acceptance_histogram * jax.numpy.arange(self.acceptance_histogram.shape[-1])
        ).sum(-1)

    @property
    def mean_acceptance_length(self) -> Float[Array, " B"]:
        """The mean number of tokens per round, the bonus token included; 0 before the first."""
        rounds = self.num_rounds
        return (rounds + self.num_accepted_tokens) / jax.numpy.maximum(rounds, 1)


@struct.dataclass
class Logprobs:
    """The log-probabilities of emitted tokens, and the likeliest tokens at their places.

    Entries at or beyond a row's length are 0. `jspec.processors.logprobs` asks for them.
    """

    token_logprobs: Float[Array, "B T"]
    """Of each emitted token."""
    top_tokens: Int[Array, "B T k"] | None
    """The k likeliest tokens, the likeliest first; None if no tokens were asked for."""
    top_logprobs: Float[Array, "B T k"] | None
    """Their log-probabilities."""


@struct.dataclass
class Controls:
    """The arguments of a generation as arrays, constant while it runs."""

    limits: Int[Array, " B"]
    """The largest number of tokens to emit, per row."""
    eos: Int[Array, "B X"]
    """End tokens; -1 fills up and ends nothing."""
    stop_token_ids: Int[Array, "B X"] | None
    """Tokens that end a row with `Status.STOP`; -1 fills up. None: there are none."""
    sampling: Sampling | None
    keys: jax.Array | None
    """The random keys [B], `fold_in(key, row_id)`; None if the call was given no key."""

    @property
    def end_tokens(self) -> Int[Array, "B X"]:
        """The tokens that end a row, whichever its status then is."""
        if self.stop_token_ids is None:
            return self.eos
        return jax.numpy.concatenate([self.eos, self.stop_token_ids], axis=1)


@struct.dataclass
class State:
    """The state of a generation between two rounds.

    Attributes:
        memory: The model's memory of the committed tokens, see `jspec.CausalLM`.
        positions: Position of the root of each row, which is the number of committed tokens.
        root: Last emitted token (at first the last of the prompt).
        tokens: Emitted tokens; entries at or beyond `lengths` are 0.
        lengths: The number of emitted tokens per row.
        status: A `Status` per row.
        drafter_state: The drafter's memory.
        stats: The statistics of the rounds.
        controls: The arguments of the call.
        capacity: S, the most tokens that a row's memory holds; static.
        processors: The call's `jspec.protocols.LogitsProcessor`s in order, with their states.
        policy_state: The memory of the policy that says how much is drafted and verified.
    """

    memory: PyTree
    positions: Int[Array, " B"]
    root: Int[Array, " B"]
    tokens: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    status: Int[Array, " B"]
    drafter_state: PyTree
    stats: Stats
    controls: Controls
    capacity: int = struct.field(pytree_node=False)
    processors: tuple[PyTree, ...] = ()
    policy_state: PyTree = ()

    @property
    def done(self) -> Bool[Array, " B"]:
        return self.status != Status.RUNNING

    @property
    def stop_bytes(self) -> Int[Array, " B"] | None:
        """As in `Result`; of a row that goes on, the bytes that may become a stop string."""
        return self.first("stop_bytes")

    @property
    def logprobs(self) -> Logprobs | None:
        """As in `Result`."""
        return self.first("logprobs")

    def first(self, name: str) -> Any:
        """Returns what the first processor that has something under a name has, or None."""
        values = (getattr(member, name, None) for member in self.processors)
        return next((value for value in values if value is not None), None)


@struct.dataclass
class Result:
    """The result of `decode`: the tokens of each row, how it ended, and statistics.

    Attributes:
        tokens: [B, T] emitted tokens, the end token included; entries at or beyond `lengths` are 0.
        lengths: [B], the number of emitted tokens of each row.
        status: [B], a `Status` per row: how it ended.
        stats: The statistics of the rounds.
        drafter_state: The drafter's memory after the last round; pass it on for a hot start.
        logprobs: Log-probabilities of the tokens; None if they were not asked for.
        stop_bytes: [B], how many bytes at the end of the row's text belong to the stop string that
            ended it, whose tokens stay. None if there are no stop strings.
        policy_state: The policy's memory after the last round; pass it on for a hot start.
    """

    tokens: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    status: Int[Array, " B"]
    stats: Stats
    drafter_state: PyTree
    logprobs: Logprobs | None = None
    stop_bytes: Int[Array, " B"] | None = None
    policy_state: PyTree = ()

    def raise_if_failed(self) -> None:
        """Raises DecodeError if a row could not go on, with its status and what helps. It waits for
        the result. End tokens, stops and limits are not failures.

        Example:
            >>> import jspec
            >>> model = jspec.testing.PrefixLM(context=8)
            >>> result = jspec.decode(model, model.init(), [[1, 2, 3, 4]], max_new_tokens=8)
            >>> result.raise_if_failed()
            Traceback (most recent call last):
            jspec.DecodeError: row 0 ended with CAPACITY after 5 tokens: the cache has no slot ...
        """
        status, lengths = jax.device_get((self.status, self.lengths))
        for row, (code, length) in enumerate(zip(status.tolist(), lengths.tolist(), strict=True)):
            if (ended := Status(code)).fix:
                text = f"row {row} ended with {ended.name} after {length} tokens: {ended.message}"
                raise DecodeError(f"{text}; {ended.fix}")
