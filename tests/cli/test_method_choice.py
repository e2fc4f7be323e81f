import pytest
import refusals

from jspec import methods
from jspec.request import Request
from jspec.sessions import method_choice
from jspec.sessions.run_settings import RunSettings


def test_method_and_config_name_the_choice():
    assert method_choice.choose(None, None).method.name == methods.DEFAULT
    assert method_choice.choose("prompt_lookup", None).method.name == "prompt_lookup"
    choice = method_choice.choose(None, '{"method": "prompt_lookup", "max_match": 2}')
    assert (choice.method.name, choice.options) == ("prompt_lookup", {"max_match": 2})
    assert method_choice.choose("prompt_lookup", '{"latest": true}').options == {"latest": True}


def test_contradictory_options_are_refused():
    for method, given, said in (
        ("ngram", None, "method ngram of vLLM is prompt_lookup here"),
        ("token_recyclin", None, "'token_recyclin' is unknown; did you mean token_recycling?"),
        (None, "{", "not JSON"),
        (None, "[" * 100_000, "not JSON"),
        (None, "9" * 5000, "not JSON"),
        (None, "[]", r"is \[\]; pass a JSON object"),
        (None, '{"method": 5}', "method in --speculative-config is 5; pass a name"),
        (None, '{"method": "nope"}', "method 'nope' is unknown"),
        ("autoregressive", '{"method": "prompt_lookup"}', "is autoregressive and .* prompt_lookup"),
        ("autoregressive", '{"k": 5}', "autoregressive's option 'k' is unknown"),
        ("token_recycling", '{"updat_on_prefill": true}', "did you mean update_on_prefill?"),
        (None, '{"k": "5"}', "k is '5'; pass an integer of at least 1"),
        (None, '{"k": 0}', "k is 0; pass"),
        (None, '{"num_speculative_tokens": 5000}', "is 5000; pass an integer in 1 .. 4096"),
        ("token_recycling", '{"update_on_prefill": 1}', "is 1; pass true or false"),
        ("token_recycling", '{"template": [[0], 1]}', "pass a list of paths"),
        (
            "speculative_decoding",
            '{"scheme": "blok"}',
            "is 'blok'; pass coupled, recursive or block",
        ),
        ("spectr", '{"scheme": "block"}', "pass coupled or k_seq"),
        ("coupled_tree", '{"scheme": "coupled"}', "coupled_tree's option 'scheme' is unknown"),
        (
            "speculative_decoding",
            '{"draft_temperature": 0}',
            "is 0; pass a number x with 1e-06 <= x <= 1000000",
        ),
        ("dyspec", '{"threshold": "0"}', "is '0'; pass a number x with 0 <= x < 1"),
        ("rsd_c", '{"branching": 3}', "is 3; pass a list such as .* each an integer in 1 .. 4096"),
        ("sequoia", '{"acceptance": [0.5, 1.1]}', "each a number x with 0 <= x <= 1"),
    ):
        with pytest.raises(ValueError, match=said):
            method_choice.choose(method, given)


def test_a_draft_model_goes_with_a_method_that_needs_one():
    auto, plain, tree = (
        method_choice.choose(name, None) for name in (None, "suffix", "coupled_tree")
    )
    for choice, model, given, loaded in (
        (auto, None, None, None),
        (plain, None, None, None),
        (auto, "some/target", "x", "x"),
        (tree, "some/target", "x", "x"),
        # The bundled target has one of its own.
        (tree, None, None, "jspec-800k"),
        (tree, "jspec-7m", None, "jspec-800k"),
        (tree, None, "x", "x"),
    ):
        assert method_choice.draft_model(choice, model, given) == loaded
    with pytest.raises(ValueError, match="coupled_tree needs a draft model"):
        method_choice.draft_model(tree, "some/target", None)
    users = r"choose one of auto, speculative_decoding, .*, coupled_tree"
    with pytest.raises(ValueError, match=users):
        method_choice.draft_model(plain, None, "x")


def of_run(fields):
    return RunSettings(**fields)


def of_request(fields):
    return RunSettings(request=Request(**{"seed": 0} | fields))


def test_settings_have_bounds():
    for name, values in {
        "max_new_tokens": (0, 2**31),
        "batch_size": (0,),
        "temperature": (-0.1, float("nan"), float("inf")),
        "top_k": (-2,),
        "top_p": (0.0, 1.01, float("nan")),
        "min_p": (-0.1, float("nan")),
        "seed": (-1, 2**32),
    }.items():
        said = f"{name.replace('_', '.')} is .*; pass"
        make = of_run if name in ("max_new_tokens", "batch_size") else of_request
        refusals.check([({name: value}, said) for value in values], make)
