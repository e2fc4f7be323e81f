"""Every drafter, once. A new method joins the contract by a line here."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
import numpy as np
import tiny

import jspec
from jspec import tree as trees
from jspec.drafters.draft_head.lyanna_resampling import Separate
from jspec.models.heads.medusa import fresh

_SMALL = trees.Template(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
_DRAFT = tiny.draft()
_MEDUSA = tiny.medusa(num_heads=3)
_BLOCK, _EAGLE, _LYANNA = tiny.block(), tiny.eagle(), tiny.lyanna()
_EAGLE3, _MTP = tiny.eagle3(), tiny.mtp()
_NARROW = tiny.eagle3(candidate_rank=5, num_candidates=6)
_COSTS = jspec.CostCurve.of({6: 1.0, 12: 1.1, 30: 1.6})


_weights = cache(lambda: tiny.params(_DRAFT))
_variables = cache(tiny.variables)


@cache
def _script():
    """A row for each of the contract's."""
    tokens = jnp.asarray([[1, 2, 3, 4] * 16] * 6)
    return jspec.Script(tokens=tokens, accepts=jnp.array([2, 0, 1]))


@cache
def _medusa():
    return {"params": fresh(_MEDUSA, tiny.params(tiny.model()))}


@dataclass(frozen=True)
class AtRandom(jspec.WidthPolicy):
    """Rounds that nothing speaks for: by the positions of the rows, and nodes by their depth."""

    widths: tuple[int, ...]

    def choose(self, params, state, tree, frame):
        index = (frame.positions.sum() * 7 // 3) % len(self.widths)
        return jspec.WidthChoice(index.astype(jnp.int32), 1.0 / (1 + jspec.tree.depths(tree)))


class Made(Mapping):
    """Drafters with their params by name, each made when it is first asked for."""

    def __init__(self, makers: dict[str, Callable[[], tuple]]):
        self._makers = makers
        self._made = cache(lambda name: makers[name]())

    def __getitem__(self, name: str) -> tuple:
        return self._made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


# name: (drafter, its params)
_MAKERS = {
    "token_recycling": lambda: (jspec.TokenRecycling(tiny.VOCAB), None),
    "token_recycling_small": lambda: (
        jspec.TokenRecycling(tiny.VOCAB, _SMALL, k=3, update_on_prefill=True, pairs=64),
        None,
    ),
    "token_recycling_per_row": lambda: (
        jspec.TokenRecycling(tiny.VOCAB, _SMALL, per_row=True),
        None,
    ),
    "spine": lambda: (jspec.Spine(tiny.VOCAB, num_speculative_tokens=7, k=5), None),
    "prompt_lookup": lambda: (jspec.PromptLookup(num_speculative_tokens=4), None),
    "rest": lambda: (
        jspec.REST(num_speculative_tokens=9, max_depth=4, num_matches=6),
        jspec.datastore.build(np.random.default_rng(3).integers(0, tiny.VOCAB, 3000), tiny.VOCAB),
    ),
    "prompt_lookup_latest": lambda: (
        jspec.PromptLookup(num_speculative_tokens=3, whole=False, latest=True),
        None,
    ),
    "prompt_lookup_verified": lambda: (
        jspec.with_verifier(
            jspec.PromptLookup(num_speculative_tokens=3), jspec.rules.deterministic_proposal
        ),
        None,
    ),
    "jump_forward": lambda: (
        jspec.JumpForward(num_speculative_tokens=3),
        None,
    ),  # without a grammar
    "lookahead": lambda: (jspec.Lookahead(tiny.VOCAB, window=3, ngram=4, guesses=3), None),
    "suffix": lambda: (jspec.Suffix(num_speculative_tokens=6, max_depth=4, capacity=64), None),
    "suffix_of_rollouts": lambda: (
        jspec.Suffix(num_speculative_tokens=6, max_depth=4, capacity=8),
        jspec.Rollouts(_script().tokens, jnp.array([64, 0, 9, 30, 64, 1])),
    ),
    "scripted": lambda: (jspec.Scripted(tiny.VOCAB, trees.branching([2, 1])), _script()),
    "merge": lambda: (
        jspec.merge(
            jspec.TokenRecycling(tiny.VOCAB, _SMALL),
            jspec.PromptLookup(num_speculative_tokens=4, whole=False),
        ),
        None,
    ),
    "speculative_decoding": lambda: (jspec.SpeculativeDecoding(_DRAFT, 3), _weights()),
    "speculative_decoding_published": lambda: (
        jspec.SpeculativeDecoding(_DRAFT, 3, scheme=jspec.schemes.RECURSIVE),
        _weights(),
    ),
    "pard": lambda: (jspec.PARD(_DRAFT, mask_token_id=22, template=_SMALL), _weights()),
    "pard_published": lambda: (
        jspec.PARD.published(_DRAFT, mask_token_id=22, template=trees.chain(3)),
        _weights(),
    ),
    "spectr": lambda: (jspec.SpecTr(_DRAFT, num_chains=3, max_depth=3), _weights()),
    "specinfer": lambda: (jspec.SpecInfer(_DRAFT, (3, 1, 1)), _weights()),
    "sequoia": lambda: (jspec.Sequoia(_DRAFT, _SMALL), _weights()),
    "rsd_c": lambda: (jspec.RSDC(_DRAFT, (2, 2)), _weights()),
    "rsd_s": lambda: (jspec.RSDS(_DRAFT, beam=3, max_depth=3), _weights()),
    "dyspec": lambda: (
        jspec.DySpec(_DRAFT, num_speculative_tokens=8, max_depth=4, beam=4),
        _weights(),
    ),
    "coupled_tree": lambda: (
        jspec.CoupledTree(
            _DRAFT, num_speculative_tokens=8, max_depth=4, beam=4, order=trees.heavy_paths
        ),
        _weights(),
    ),
    "mixture": lambda: (
        jspec.merge(
            jspec.TokenRecycling(tiny.VOCAB, _SMALL),
            jspec.PromptLookup(num_speculative_tokens=4, whole=False),
            jspec.merge(
                jspec.PromptLookup(2, whole=False), jspec.PromptLookup(3), num_speculative_tokens=3
            ),
            num_speculative_tokens=6,
        ),
        None,
    ),
    "mixture_with_a_draft_model": lambda: (
        # As many nodes as the draft model has: it must not take them for its own.
        jspec.merge(
            jspec.SpeculativeDecoding(_DRAFT, 4),
            jspec.PromptLookup(num_speculative_tokens=4, whole=False),
            num_speculative_tokens=4,
        ),
        (_weights(), None),
    ),
    "block": lambda: (
        jspec.BlockDrafter(_BLOCK, num_speculative_tokens=7, beam=3, num_candidates=8),
        _variables(_BLOCK),
    ),
    "eagle": lambda: (jspec.EAGLE(_EAGLE, _SMALL), _variables(_EAGLE)),
    "eagle_recursive": lambda: (
        jspec.EAGLE(_EAGLE, _SMALL, scheme=jspec.schemes.RECURSIVE),
        _variables(_EAGLE),
    ),
    "eagle2": lambda: (
        jspec.EAGLE2(_EAGLE, num_speculative_tokens=8, max_depth=4, beam=4),
        _variables(_EAGLE),
    ),
    "eagle3": lambda: (
        jspec.EAGLE2(_EAGLE3, num_speculative_tokens=8, max_depth=4, beam=4),
        _variables(_EAGLE3),
    ),
    "eagle_candidates": lambda: (jspec.EAGLE(_NARROW, _SMALL), _variables(_NARROW)),
    "mtp": lambda: (jspec.EAGLE(_MTP, _SMALL), _variables(_MTP)),
    "medusa": lambda: (jspec.Medusa(_MEDUSA, _SMALL), _medusa()),
    "lyanna": lambda: (
        jspec.Lyanna(_LYANNA, num_speculative_tokens=7, beam=3),
        _variables(_LYANNA),
    ),
    "lyanna_separate": lambda: (
        jspec.Lyanna(
            _LYANNA,
            num_speculative_tokens=5,
            beam=3,
            resampling=Separate(num_speculative_tokens=6, threshold=1),
        ),
        _variables(_LYANNA),
    ),
    "lyanna_merged": lambda: (
        jspec.merge(
            jspec.Lyanna(_LYANNA, num_speculative_tokens=5, beam=3),
            jspec.PromptLookup(num_speculative_tokens=4, whole=False),
        ),
        (_variables(_LYANNA), None),
    ),
}
DRAFTERS = Made(_MAKERS)


def call_of(name):
    """The arguments of a call that drafts so, by name; "adaptive" has a policy too."""
    if name == "adaptive":
        members = (
            jspec.PromptLookup(num_speculative_tokens=4, whole=False),
            jspec.TokenRecycling(tiny.VOCAB, _SMALL),
        )
        return dict(
            drafter=jspec.merge(*members, num_speculative_tokens=6), drafter_params=None,
            policy=jspec.Adaptive((0, 1, 4)), policy_params=_COSTS,
        )  # fmt: skip
    drafter, params = DRAFTERS[name]
    return dict(drafter=drafter, drafter_params=params)


QUICK = ("token_recycling_small", "prompt_lookup")
"""Drafters with a memory of the batch, and of a row's text. The slow tests have all others;
draft models, heads and chosen widths have runs of their own in `tests/drafters`."""

IN_MERGE = ("token_recycling", "suffix", "pard")
"""Drafters that are also run inside `jspec.merge`, a program of its own, by the slow tests;
`tests/drafters/test_merge.py` has merges quickly."""

IN_MERGE_TOO = ("speculative_decoding", "medusa", "spine", "rest", "lookahead", "eagle", "block")
"""More of these families, whose merges are held to the whole contract by the slow tests."""

OF_A_RULE_OF_THEIR_OWN = (
    "prompt_lookup_verified",
    "speculative_decoding_published",
    "pard_published",
    "eagle_recursive",
)
"""Drafters that the coupled rule does not verify: their tokens differ from plain decoding's."""

OF_NO_DRAFT = ("jump_forward",)
"""Drafters that draft nothing without a grammar, with which tests/processors has forced tokens."""

ON_A_TRANSFORMER = ("medusa", "eagle2", "speculative_decoding", "pard")
"""Drafters that are also run on a target whose logits are not a table."""
