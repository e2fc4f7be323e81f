"""Abilities of drafters, which wrappers and merges pass on, and the fields they refuse."""

import dataclasses
import math
import re
from functools import partial

import pytest
from contract.methods import DRAFTERS

import jspec
from benchmarks.whole_rounds import Counting
from jspec._validate.kinds import Flag, Integer, Number
from jspec._validate.options import options_of
from jspec.drafters.draft_head.lyanna_resampling import Fused, Merged, Separate
from jspec.drafters.wrapper import DrafterWrapper
from jspec.testing import PrefixLM
from jspec.testing.watch import WatchedDrafter

ABILITIES = {name for name in vars(jspec.Drafter) if not name.startswith("_")}
OWN_VIEW = {"init", "prefill", "draft", "update"}
"""Functions with the wrapper's own state around the drafter's."""


def test_every_wrapper_has_every_ability_of_its_drafter():
    draft = jspec.SpeculativeDecoding(PrefixLM(), 3, scheme=jspec.schemes.RECURSIVE)
    recycling = jspec.TokenRecycling(23, jspec.tree.chain(2))
    for inner in (draft, recycling, jspec.merge(recycling, jspec.PromptLookup())):
        for wrapper, changes in (
            (jspec.with_verifier(inner, jspec.rules.coupled), {"verifier"}),
            (WatchedDrafter(inner, None, 4), OWN_VIEW),
            (Counting(inner), OWN_VIEW),
        ):
            assert isinstance(wrapper, DrafterWrapper)
            for name in ABILITIES - changes:
                assert getattr(wrapper, name) == getattr(inner, name), (wrapper, name)


def test_a_merge_has_the_abilities_of_its_members():
    short = jspec.SpeculativeDecoding(PrefixLM(context=20), 2)
    lookup, suffix = jspec.PromptLookup(), jspec.Suffix(capacity=8)
    both = jspec.merge(short, lookup)
    assert both.context == 20 and both.follows_text and both.verifier == short.verifier
    assert not jspec.merge(lookup, suffix).follows_text


def test_invalid_drafters_are_refused_in_one_sentence():
    class Mine(jspec.Drafter):
        def draft(self, state):
            return state

    for drafter, said in (
        (jspec.PromptLookup, "pass an instance such as jspec.PromptLookup"),
        (object(), "or derive yours from jspec.Drafter"),
        (Mine(), r"whose draft does not take \(params, state, frame\)"),
    ):
        with pytest.raises(jspec.InputError, match=said):
            jspec.prefill(PrefixLM(), PrefixLM().init(), [[1]], drafter=drafter)


def wrong(option):
    """Values of other types, and those next to the bounds."""
    none = () if option.default is None and not option.required else (None,)
    match option.kind:
        case Flag():
            return ("false", 1, *none)  # "false" would count as true
        case Integer(low=low, high=high):
            beyond = () if high is None else (high + 1,)
            return (2.5, 2.0, "3", True, int, [2], low - 1, *beyond, *none)
        case Number(low=low, high=high) as kind:
            beyond = [bound for bound in (low, high) if not math.isfinite(bound)]
            beyond += [low] if kind.above_low else [low - 1]
            beyond += [high] if kind.below_high else [high + 1]
            return ("1", True, float("nan"), *beyond, *none)
    return ()


def test_fields_of_another_type_or_out_of_bounds_are_refused():
    """In one sentence, when the drafter is made: nothing is traced for it."""
    asked = set()
    drafters = (*DRAFTERS.drafters(), Fused(), Merged(), Separate())
    for drafter in {type(made): made for made in drafters}.values():
        for name, option in options_of(type(drafter)).items():
            for value in wrong(option):
                asked.add((type(drafter), name))
                print(f"{type(drafter).__name__}({name}={value!r})")
                said = rf"^{name} is {re.escape(repr(value))}; pass "
                with pytest.raises(jspec.InputError, match=said):
                    dataclasses.replace(drafter, **{name: value})
    assert len(asked) > 60


def test_a_drafter_that_knows_no_class_is_refused():
    """A head, a draft model or a template of another kind, and a head that is a class."""
    eagle, lyanna, medusa = (DRAFTERS[name][0] for name in ("eagle", "lyanna", "medusa"))
    block, chain = (DRAFTERS[name][0] for name in ("block", "speculative_decoding"))
    for make, others, said in (
        (jspec.EAGLE, (medusa.head,), "a jspec.DraftHead,"),
        (jspec.EAGLE2, (medusa.head,), "a jspec.DraftHead,"),
        (jspec.Lyanna, (chain.model,), "a jspec.DraftHead,"),
        (jspec.Medusa, (eagle.head, 4), "Medusa's heads, such as"),
        (jspec.BlockDrafter, (eagle.head,), "a head of blocks,"),
    ):
        for head in (None, 3, "jspec-7m/eagle", type(block.head), type(lyanna.head), *others):
            with pytest.raises(jspec.InputError, match=rf"^head is .*; pass {said}"):
                make(head)
    trees = partial(jspec.EAGLE, eagle.head), partial(jspec.Sequoia, chain.model)
    for make in (*trees, partial(jspec.PARD, chain.model, 1)):
        for template in (None, jspec.Template, 7, ((0,),)):
            with pytest.raises(jspec.InputError, match=r"tree is .*; pass a jspec.Template"):
                make(template)
