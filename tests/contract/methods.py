"""Every drafter, once. A new method joins the contract by a line here."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import tiny

import jspec
from jspec import tree as trees
from jspec.drafters.draft_head.lyanna_resampling import Separate
from jspec.models.heads.medusa import MedusaConfig, MedusaHeads, fresh

# A row for each of the contract's.
_SCRIPT = jspec.Script(tokens=jnp.asarray([[1, 2, 3, 4] * 16] * 6), accepts=jnp.array([2, 0, 1]))
_CORPUS = np.random.default_rng(3).integers(0, tiny.VOCAB, 3000)
_SMALL = trees.Template(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
_DRAFT = tiny.draft()
_WEIGHTS = tiny.params(_DRAFT)
_MEDUSA = MedusaHeads(MedusaConfig(tiny.VOCAB, 16, num_heads=3))
_HEADS = {"params": fresh(_MEDUSA, tiny.params(tiny.model()))}
_BLOCK, _EAGLE, _LYANNA = tiny.block(), tiny.eagle(), tiny.lyanna()
_EAGLE3, _MTP = tiny.eagle3(), tiny.mtp()
_NARROW = tiny.eagle3(candidate_rank=5, num_candidates=6)


@dataclass(frozen=True)
class AtRandom(jspec.Adaptive):
    """Widths that nothing speaks for: of the positions of the rows, whatever rounds cost."""

    def draft(self, params, state, frame):
        tree, aux = super().draft(params, state, frame)
        index = (frame.positions.sum() * 7 // 3) % len(tree.choice.widths)
        choice = replace(tree.choice, index=index.astype(jnp.int32))
        return replace(tree, choice=choice), aux


_COSTS = jspec.CostCurve.of({6: 1.0, 12: 1.1, 30: 1.6})

# name: (drafter, its params)
DRAFTERS = {
    "token_recycling": (jspec.TokenRecycling(tiny.VOCAB), None),
    "token_recycling_small": (
        jspec.TokenRecycling(tiny.VOCAB, _SMALL, k=3, update_on_prefill=True),
        None,
    ),
    "token_recycling_per_row": (jspec.TokenRecycling(tiny.VOCAB, _SMALL, per_row=True), None),
    "dynamic_token_recycling": (
        jspec.DynamicTokenRecycling(tiny.VOCAB, num_speculative_tokens=7, max_depth=4, beam=4, k=3),
        None,
    ),
    "prompt_lookup": (jspec.PromptLookup(num_speculative_tokens=4), None),
    "rest": (
        jspec.REST(num_speculative_tokens=9, max_depth=4, num_matches=6),
        jspec.datastore.build(_CORPUS, tiny.VOCAB),
    ),
    "prompt_lookup_latest": (
        jspec.PromptLookup(num_speculative_tokens=3, whole=False, latest=True),
        None,
    ),
    "prompt_lookup_verified": (
        jspec.with_verifier(
            jspec.PromptLookup(num_speculative_tokens=3), jspec.rules.deterministic_proposal
        ),
        None,
    ),
    "jump_forward": (jspec.JumpForward(num_speculative_tokens=3), None),  # without a grammar
    "lookahead": (jspec.Lookahead(tiny.VOCAB, window=3, ngram=4, guesses=3), None),
    "suffix": (jspec.Suffix(num_speculative_tokens=6, max_depth=4, capacity=64), None),
    "suffix_of_rollouts": (
        jspec.Suffix(num_speculative_tokens=6, max_depth=4, capacity=8),
        jspec.Rollouts(_SCRIPT.tokens, jnp.array([64, 0, 9, 30, 64, 1])),
    ),
    "scripted": (jspec.Scripted(tiny.VOCAB, trees.branching([2, 1])), _SCRIPT),
    "merge": (
        jspec.merge(
            jspec.TokenRecycling(tiny.VOCAB, _SMALL),
            jspec.PromptLookup(num_speculative_tokens=4, whole=False),
        ),
        None,
    ),
    "speculative_decoding": (jspec.SpeculativeDecoding(_DRAFT, 3), _WEIGHTS),
    "speculative_decoding_published": (
        jspec.SpeculativeDecoding(_DRAFT, 3, scheme=jspec.schemes.RECURSIVE),
        _WEIGHTS,
    ),
    "pard": (jspec.PARD(_DRAFT, mask_token_id=22, template=_SMALL), _WEIGHTS),
    "pard_published": (
        jspec.PARD.published(_DRAFT, mask_token_id=22, template=trees.chain(3)),
        _WEIGHTS,
    ),
    "spectr": (jspec.SpecTr(_DRAFT, num_chains=3, max_depth=3), _WEIGHTS),
    "specinfer": (jspec.SpecInfer(_DRAFT, (3, 1, 1)), _WEIGHTS),
    "sequoia": (jspec.Sequoia(_DRAFT, _SMALL), _WEIGHTS),
    "rsd_c": (jspec.RSDC(_DRAFT, (2, 2)), _WEIGHTS),
    "rsd_s": (jspec.RSDS(_DRAFT, beam=3, max_depth=3), _WEIGHTS),
    "dyspec": (jspec.DySpec(_DRAFT, num_speculative_tokens=8, max_depth=4, beam=4), _WEIGHTS),
    "calibrated_dyspec": (
        jspec.CalibratedDySpec(
            _DRAFT,
            num_speculative_tokens=8,
            max_depth=4,
            beam=4,
            threshold=0.05,
            order=trees.depth_first,
        ),
        _WEIGHTS,
    ),
    "coupled_tree": (
        jspec.CoupledTree(
            _DRAFT, num_speculative_tokens=8, max_depth=4, beam=4, order=trees.heavy_paths
        ),
        _WEIGHTS,
    ),
    "mixture": (
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
    "mixture_with_a_draft_model": (
        # As many nodes as the draft model has: it must not take them for its own.
        jspec.merge(
            jspec.SpeculativeDecoding(_DRAFT, 4),
            jspec.PromptLookup(num_speculative_tokens=4, whole=False),
            num_speculative_tokens=4,
        ),
        (_WEIGHTS, None),
    ),
    "block": (
        jspec.BlockDrafter(_BLOCK, num_speculative_tokens=7, beam=3, num_candidates=8),
        tiny.variables(_BLOCK),
    ),
    "eagle": (jspec.EAGLE(_EAGLE, _SMALL), tiny.variables(_EAGLE)),
    "eagle_recursive": (
        jspec.EAGLE(_EAGLE, _SMALL, scheme=jspec.schemes.RECURSIVE),
        tiny.variables(_EAGLE),
    ),
    "eagle2": (
        jspec.EAGLE2(_EAGLE, num_speculative_tokens=8, max_depth=4, beam=4),
        tiny.variables(_EAGLE),
    ),
    "eagle3": (
        jspec.EAGLE2(_EAGLE3, num_speculative_tokens=8, max_depth=4, beam=4),
        tiny.variables(_EAGLE3),
    ),
    "eagle_candidates": (jspec.EAGLE(_NARROW, _SMALL), tiny.variables(_NARROW)),
    "mtp": (jspec.EAGLE(_MTP, _SMALL), tiny.variables(_MTP)),
    "medusa": (jspec.Medusa(_MEDUSA, _SMALL), _HEADS),
    "lyanna": (jspec.Lyanna(_LYANNA, num_speculative_tokens=7, beam=3), tiny.variables(_LYANNA)),
    "lyanna_separate": (
        jspec.Lyanna(
            _LYANNA,
            num_speculative_tokens=5,
            beam=3,
            resampling=Separate(num_speculative_tokens=6, threshold=1),
        ),
        tiny.variables(_LYANNA),
    ),
    "lyanna_merged": (
        jspec.merge(
            jspec.Lyanna(_LYANNA, num_speculative_tokens=5, beam=3),
            jspec.PromptLookup(num_speculative_tokens=4, whole=False),
        ),
        (tiny.variables(_LYANNA), None),
    ),
    "adaptive": (
        jspec.adaptive(
            jspec.merge(
                jspec.PromptLookup(num_speculative_tokens=4, whole=False),
                jspec.TokenRecycling(tiny.VOCAB, _SMALL),
                num_speculative_tokens=6,
            ),
            widths=(0, 1, 4),
        ),
        jspec.AdaptiveParams(None, _COSTS),
    ),
    "adaptive_draft_model_at_random": (
        AtRandom(
            jspec.CoupledTree(_DRAFT, num_speculative_tokens=8, max_depth=4, beam=4), (0, 2, 8)
        ),
        jspec.AdaptiveParams(_WEIGHTS, _COSTS),
    ),
}

SLOW = (
    "prompt_lookup_verified",
    "pard_published",
    "spectr",
    "specinfer",
    "sequoia",
    "rsd_c",
    "rsd_s",
    "dyspec",
    "eagle",
    "eagle_recursive",
    "eagle3",
    "eagle_candidates",
    "mtp",
    "lyanna_merged",
    "mixture_with_a_draft_model",
    "adaptive_draft_model_at_random",
    "calibrated_dyspec",
    "lyanna_separate",
    "speculative_decoding",
    "mixture",
    "medusa",
    "speculative_decoding_published",
    "token_recycling_small",
    "token_recycling_per_row",
    "suffix_of_rollouts",
    "merge",
    "lookahead",
    "dynamic_token_recycling",
    "rest",
    "lyanna",
    "pard",
    "jump_forward",
    "scripted",
    "prompt_lookup_latest",
)
"""Drafters beside one that has the same memory, tree and rule: only the slow tests have them."""

IN_MERGE = ("token_recycling", "suffix", "speculative_decoding", "pard", "medusa")
"""Drafters that are also run inside `jspec.merge`, a program of its own: one of each family."""

IN_MERGE_TOO = (
    "dynamic_token_recycling",
    "rest",
    "lookahead",
    "calibrated_dyspec",
    "eagle",
    "block",
    "adaptive_draft_model_at_random",
)
"""More of these families, whose merges are held to the whole contract by the slow tests."""

OF_A_RULE_OF_THEIR_OWN = (
    "prompt_lookup_verified",
    "speculative_decoding_published",
    "pard_published",
    "eagle_recursive",
)
"""Drafters whose draws are not decided about by the coupled rule: their tokens are not plain's."""

OF_NO_DRAFT = ("jump_forward",)
"""Drafters that have nothing to draft here, where there is no grammar: nothing of theirs is taken,
and tests/test_grammar.py has what a grammar forces."""

BY_ROW = ("scripted", "suffix_of_rollouts")
"""Drafters whose params have a row for each of the contract's."""

ON_A_TRANSFORMER = ("medusa", "eagle2", "speculative_decoding", "pard")
"""Drafters that are also run on a target whose logits are no table."""
