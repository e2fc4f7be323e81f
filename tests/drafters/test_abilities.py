"""Abilities of drafters are listed once; wrappers and merges pass all of them on."""

import ast
from pathlib import Path

import pytest

import jspec
from benchmarks.whole_rounds import Counting
from jspec.drafters.wrapper import DrafterWrapper
from jspec.testing import PrefixLM
from jspec.testing.recorded import Recorded
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
            (Recorded(inner, 23, 5), OWN_VIEW | {"tells_rest"}),
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


def test_attributes_read_of_a_drafter_are_documented():
    """In all of the engine: only merges and the contract know what a drafter holds."""
    root, read = Path(jspec.__file__).parent, set()
    for part in ("round", "decoding", "verify", "costs", "policies", "sessions", "serve", "cli"):
        for file in (root / part).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Attribute):
                    of = node.value
                    name = getattr(of, "id", None) or getattr(of, "attr", None)
                    read |= {node.attr} if name == "drafter" else set()
    assert {"draft", "update", "verifier", "context"} <= read <= ABILITIES


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
