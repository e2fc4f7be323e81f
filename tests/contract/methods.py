"""Every drafter, once. A new method joins the contract by a line here."""

from collections.abc import Iterator, Mapping
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
def _rollouts():
    return jspec.Rollouts(_script().tokens, jnp.array([64, 0, 9, 30, 64, 1]))


@cache
def _medusa():
    return {"params": fresh(_MEDUSA, tiny.params(tiny.model()))}


@cache
def _store():
    corpus = np.random.default_rng(3).integers(0, tiny.VOCAB, 3000)
    return jspec.datastore.build(corpus, tiny.VOCAB)


def _of(head):
    return lambda: _variables(head)


@dataclass(frozen=True)
class AtRandom(jspec.WidthPolicy):
    """Rounds that nothing speaks for: by the positions of the rows, and nodes by their depth."""

    widths: tuple[int, ...]

    def choose(self, params, state, tree, frame):
        index = (frame.positions.sum() * 7 // 3) % len(self.widths)
        return jspec.WidthChoice(index.astype(jnp.int32), 1.0 / (1 + jspec.tree.depths(tree)))


class Made(Mapping):
    """Drafters with their params by name, these made when they are first asked for."""

    def __init__(self, made: dict[str, tuple]):
        self._made = made

    def __getitem__(self, name: str) -> tuple:
        drafter, *params = self._made[name]
        return drafter, params[0]() if params else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def drafters(self) -> list:
        """Without params, which take a second to make."""
        return [drafter for drafter, *_ in self._made.values()]


_RECYCLING = jspec.TokenRecycling(tiny.VOCAB, _SMALL)
_LOOKUP = jspec.PromptLookup(num_speculative_tokens=4, whole=False)
_LOOKUPS = jspec.merge(
    jspec.PromptLookup(2, whole=False), jspec.PromptLookup(3), num_speculative_tokens=3
)
_TREE = dict(num_speculative_tokens=8, max_depth=4, beam=4)
_CHAIN, _RECURSIVE = trees.chain(3), dict(scheme=jspec.schemes.RECURSIVE)
_MADE = {
    # name: (drafter, what makes its params, if it has any)
    "token_recycling": (jspec.TokenRecycling(tiny.VOCAB),),
    "token_recycling_small": (
        jspec.TokenRecycling(tiny.VOCAB, _SMALL, k=3, update_on_prefill=True, pairs=64),
    ),
    "token_recycling_per_row": (jspec.TokenRecycling(tiny.VOCAB, _SMALL, per_row=True),),
    "spine": (jspec.Spine(tiny.VOCAB, num_speculative_tokens=7, k=5),),
    "prompt_lookup": (jspec.PromptLookup(num_speculative_tokens=4),),
    "rest": (jspec.REST(num_speculative_tokens=9, max_depth=4, num_matches=6), _store),
    "prompt_lookup_latest": (
        jspec.PromptLookup(num_speculative_tokens=3, whole=False, latest=True),
    ),
    "prompt_lookup_verified": (
        jspec.with_verifier(jspec.PromptLookup(3), jspec.rules.deterministic_proposal),
    ),
    "jump_forward": (jspec.JumpForward(num_speculative_tokens=3),),  # without a grammar
    "lookahead": (jspec.Lookahead(tiny.VOCAB, window=3, ngram=4, guesses=3),),
    "suffix": (jspec.Suffix(num_speculative_tokens=6, max_depth=4, capacity=64),),
    "suffix_of_rollouts": (
        jspec.Suffix(num_speculative_tokens=6, max_depth=4, capacity=8), _rollouts
    ),
    "scripted": (jspec.Scripted(tiny.VOCAB, trees.branching([2, 1])), _script),
    "merge": (jspec.merge(_RECYCLING, _LOOKUP),),
    "speculative_decoding": (jspec.SpeculativeDecoding(_DRAFT, 3), _weights),
    "speculative_decoding_published": (
        jspec.SpeculativeDecoding(_DRAFT, 3, **_RECURSIVE), _weights
    ),
    "pard": (jspec.PARD(_DRAFT, mask_token_id=22, template=_SMALL), _weights),
    "pard_published": (
        jspec.PARD.published(_DRAFT, mask_token_id=22, template=_CHAIN), _weights
    ),
    "spectr": (jspec.SpecTr(_DRAFT, num_chains=3, max_depth=3), _weights),
    "specinfer": (jspec.SpecInfer(_DRAFT, (3, 1, 1)), _weights),
    "sequoia": (jspec.Sequoia(_DRAFT, _SMALL), _weights),
    "rsd_c": (jspec.RSDC(_DRAFT, (2, 2)), _weights),
    "rsd_s": (jspec.RSDS(_DRAFT, beam=3, max_depth=3), _weights),
    "dyspec": (jspec.DySpec(_DRAFT, **_TREE), _weights),
    "coupled_tree": (jspec.CoupledTree(_DRAFT, **_TREE, order=trees.heavy_paths), _weights),
    "mixture": (jspec.merge(_RECYCLING, _LOOKUP, _LOOKUPS, num_speculative_tokens=6),),
    "mixture_with_a_draft_model": (
        # As many nodes as the draft model has: it must not take them for its own.
        jspec.merge(jspec.SpeculativeDecoding(_DRAFT, 4), _LOOKUP, num_speculative_tokens=4),
        lambda: (_weights(), None),
    ),
    "block": (
        jspec.BlockDrafter(_BLOCK, num_speculative_tokens=7, beam=3, num_candidates=8), _of(_BLOCK)
    ),
    "eagle": (jspec.EAGLE(_EAGLE, _SMALL), _of(_EAGLE)),
    "eagle_recursive": (jspec.EAGLE(_EAGLE, _SMALL, **_RECURSIVE), _of(_EAGLE)),
    "eagle2": (jspec.EAGLE2(_EAGLE, **_TREE), _of(_EAGLE)),
    "eagle3": (jspec.EAGLE2(_EAGLE3, **_TREE), _of(_EAGLE3)),
    "eagle_candidates": (jspec.EAGLE(_NARROW, _SMALL), _of(_NARROW)),
    "mtp": (jspec.EAGLE(_MTP, _SMALL), _of(_MTP)),
    "medusa": (jspec.Medusa(_MEDUSA, _SMALL), _medusa),
    "lyanna": (jspec.Lyanna(_LYANNA, num_speculative_tokens=7, beam=3), _of(_LYANNA)),
    "lyanna_separate": (
        jspec.Lyanna(_LYANNA, 5, beam=3, resampling=Separate(6, threshold=1)),
        _of(_LYANNA),
    ),
    "lyanna_merged": (
        jspec.merge(jspec.Lyanna(_LYANNA, num_speculative_tokens=5, beam=3), _LOOKUP),
        lambda: (_variables(_LYANNA), None),
    ),
}  # fmt: skip
DRAFTERS = Made(_MADE)


def call_of(name):
    """The arguments of a call that drafts so, by name; "adaptive" has a policy too."""
    if name == "adaptive":
        return dict(
            drafter=jspec.merge(_LOOKUP, _RECYCLING, num_speculative_tokens=6),
            drafter_params=None, policy=jspec.Adaptive((0, 1, 4)), policy_params=_COSTS,
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
