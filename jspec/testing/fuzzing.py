"""Random trees, valid or not, whose tokens must equal plain decoding's."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jspec import decoding
from jspec._validate.errors import InputError
from jspec.drafters.merge import merge
from jspec.protocols import CausalLM, Drafter
from jspec.testing.fuzz_drafter import FuzzDrafter, FuzzShape, FuzzState, random_trees
from jspec.testing.fuzz_oracle import play
from jspec.testing.prefix_lm import PrefixLM
from jspec.testing.promises import Report, consistent_stats, promise, same_tokens
from jspec.types import PyTree, Result, Sampling

_ROWS = 32
_MAX_NEW_TOKENS = 40
_PROMPT = 8

SHAPES = (
    FuzzShape(num_nodes=10, depth=3, width=9, with_value=True),
    FuzzShape(num_nodes=14, depth=20, width=30),
    FuzzShape(num_nodes=8, depth=1, width=7),
    FuzzShape(num_nodes=9, depth=8, width=1),
)
MERGED = (FuzzShape(num_nodes=7, depth=3, width=6), FuzzShape(num_nodes=9, depth=2, width=8))


@dataclass
class _Subject:
    """A model, its params, and a batch whose plain text is known."""

    model: CausalLM
    params: PyTree
    prompt: Int[np.ndarray, "B T"]
    lengths: Int[np.ndarray, " B"]
    key: int
    plain: Result = field(init=False)

    def __post_init__(self):
        self.plain = self.decode()

    def decode(self, **drafter: Any) -> Result:
        sampled = jnp.arange(len(self.lengths)) % 2 == 1
        return decoding.decode(
            self.model,
            self.params,
            self.prompt,
            self.lengths,
            max_new_tokens=_MAX_NEW_TOKENS,
            sampling=Sampling(temperature=jnp.where(sampled, 0.8, 0.0)),
            key=self.key,
            **drafter,
        )


def fuzz(
    model: CausalLM | None = None,
    model_params: PyTree = None,
    *,
    rounds: int = 2000,
    seed: int = 0,
    in_merge: bool = True,
) -> Report:
    """Decodes with thousands of random trees, most of them no trees, and compares the tokens.

    Parents may be later nodes, the node itself, cycles or negative; nodes may be absent with
    children, deeper or more than declared; ids may be foreign, equal to a sibling's or to the
    root's; node 0 may be absent, hold another token or have a parent; values may be NaN. Some nodes
    hold what the target will say, so that paths of all lengths are accepted. Half the rows are
    greedy and half sampled. Trees are data: however many rounds, one program for each of four
    shapes, and three more for `jspec.merge` of two such drafters, with and without a budget.

    Args:
        model: the target; None is `jspec.testing.PrefixLM`.
        model_params: its weights; None only without a model.
        rounds: how many trees to draft at least; each row's round counts as one.
        seed: of the trees; another one gives other trees, and compiles nothing.
        in_merge: whether to fuzz `jspec.merge` as well.

    Returns:
        A `Report` of how many trees there were and how deep the accepted paths went.

    Raises:
        AssertionError: if tokens are not those of plain decoding, if the statistics do not add up,
            or if a path was not accepted that should have been. The sentence holds the shape, the
            seed and the tree.
        InputError: if the arguments do not fit together.

    Example:
        >>> from jspec.testing import fuzz
        >>> def test_whatever_is_drafted():
        ...     fuzz(rounds=5000, seed=1)
    """
    if model is None and model_params is not None:
        raise InputError("model_params came without a model; pass both, or neither")
    if rounds < 1:
        raise InputError(f"rounds is {rounds}; draft at least 1 tree")
    if model is None:
        model = PrefixLM()
        model_params = model.init()
    rng = np.random.default_rng(seed)
    report = Report()
    # A budget takes its own choice of the nodes: how far it is accepted is not known beforehand.
    drafters: list[tuple[str, tuple[FuzzShape, ...], Drafter, bool]] = [
        (str(shape), (shape,), FuzzDrafter(shape), True) for shape in SHAPES
    ]
    if in_merge:
        pair = tuple(FuzzDrafter(shape) for shape in MERGED)
        drafters += [
            ("merge", MERGED, merge(*pair), True),
            ("merge the other way round", MERGED[::-1], merge(*pair[::-1]), True),
            ("merge of 5 nodes", MERGED, merge(*pair, num_speculative_tokens=5), False),
        ]
    for name, shapes, drafter, exact in drafters:
        counts = np.zeros(1, int)
        while counts.sum() < rounds / len(drafters):
            found = _batch(name, shapes, drafter, exact, model, model_params, rng, seed)
            # Every call of a drafter has paths of the same lengths.
            counts = counts + found
        report.checked.append(
            f"{counts.sum()} trees of {name}: tokens are those of plain decoding; accepted paths "
            f"by length {counts.tolist()}"
        )
    return report


def _batch(
    name: str,
    shapes: tuple[FuzzShape, ...],
    drafter: Drafter,
    exact: bool,
    model: CausalLM,
    model_params: PyTree,
    rng: np.random.Generator,
    seed: int,
) -> Int[np.ndarray, " P"]:
    """Checks one call, and returns how often a path of each length was accepted."""
    size = model.vocab_size
    # Few different tokens, so that the root's often comes again.
    prompt = rng.integers(min(size, 4), size=(_ROWS, _PROMPT))
    lengths = rng.integers(1, _PROMPT + 1, _ROWS)
    subject = _Subject(model, model_params, prompt, lengths, int(rng.integers(2**31)))
    text = np.asarray(subject.plain.tokens)
    params = tuple(random_trees(rng, shape, size, text, _MAX_NEW_TOKENS) for shape in shapes)
    result = subject.decode(
        drafter=drafter, drafter_params=params if len(params) > 1 else next(iter(params))
    )
    what = f"fuzz, seed {seed}, {name}"
    histogram = np.asarray(result.stats.acceptance_histogram)
    # Before the tokens: the round that went astray explains them.
    host = jax.device_get(params)
    emitted, ends = np.asarray(result.tokens), np.asarray(subject.plain.lengths)
    for row in range(_ROWS):
        root = int(prompt[row, lengths[row] - 1])
        story = play(host, shapes, row, root, text[row, : ends[row]], size)
        if (wrong := np.flatnonzero(emitted[row] != text[row])).size:
            rounds = [told for told in story if told.start <= wrong[0]]
            same_tokens(result, subject.plain, f"{what}; {rounds[-1] if rounds else ''}")
        if exact:
            wanted = np.bincount(
                [told.emitted - 1 for told in story], minlength=len(histogram[row])
            )
            promise(
                np.array_equal(wanted, histogram[row]),
                f"{what}: right drafts are accepted: row {row} should have had rounds by length "
                f"{wanted.tolist()} and had {histogram[row].tolist()}; its rounds: "
                + "; ".join(map(str, story[:4])),
            )
    same_tokens(result, subject.plain, what)
    consistent_stats(result, what)
    states = result.drafter_state if len(params) > 1 else (result.drafter_state,)
    for member, state in enumerate(_fuzz_states(states)):
        for row, rounds in enumerate(np.asarray(state.mistold).tolist()):
            promise(
                rounds == 0,
                f"{what}: a drafter is told of its own tree: drafter {member} was told otherwise "
                f"in {rounds} rounds of row {row}",
            )
    return histogram.sum(0)


def _fuzz_states(state: PyTree) -> list[FuzzState]:
    """Returns the states of all fuzz drafters, however a merge keeps them."""
    found = jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, FuzzState))
    return [leaf for leaf in found if isinstance(leaf, FuzzState)]
