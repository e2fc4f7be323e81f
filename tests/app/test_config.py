import dataclasses

import pytest

from jspec.app import config, methods, sessions
from jspec.app.methods import METHODS, Method
from jspec.app.settings import Settings


def test_method_and_config_name_the_choice():
    assert config.choose(None, None).method.name == methods.DEFAULT
    assert config.choose("prompt_lookup", None).method.name == "prompt_lookup"
    choice = config.choose(None, '{"method": "prompt_lookup", "prompt_lookup_max": 2}')
    assert (choice.method.name, choice.options) == ("prompt_lookup", {"prompt_lookup_max": 2})
    assert config.choose("prompt_lookup", '{"latest": true}').options == {"latest": True}


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("token_recyclin", None, "'token_recyclin' is unknown; did you mean token_recycling?"),
        ("xyz", None, "'xyz' is unknown; known: autoregressive, "),
        (None, "{", "no JSON"),
        (None, "[" * 100_000, "no JSON"),
        (None, "9" * 5000, "no JSON"),
        (None, "[]", r"is \[\]; pass a JSON object"),
        (None, '{"method": 5}', "method in --speculative-config is 5; pass a name"),
        (None, '{"method": "nope"}', "method 'nope' is unknown"),
        ("autoregressive", '{"method": "prompt_lookup"}', "is autoregressive and .* prompt_lookup"),
        ("autoregressive", '{"k": 5}', "key of autoregressive 'k' is unknown"),
        (None, '{"updat_on_prefill": true}', "did you mean update_on_prefill?"),
        (None, '{"k": "5"}', "k is '5'; pass an integer of at least 1"),
        (None, '{"k": true}', "k is True; pass an integer"),
        (None, '{"k": 0}', "k is 0; pass"),
        (None, '{"num_speculative_tokens": 5000}', "is 5000; pass an integer in 1 .. 1024"),
        (None, '{"update_on_prefill": 1}', "is 1; pass true or false"),
        (None, '{"template": [[0], 1]}', "pass a list of paths"),
        (None, '{"template": [[0], [-1]]}', "pass a list of paths"),
    ],
)
def test_what_cannot_be_meant_is_refused(method, given, said):
    with pytest.raises(ValueError, match=said):
        config.choose(method, given)


def test_a_draft_model_goes_with_a_method_that_needs_one(monkeypatch):
    plain = config.choose(None, None)
    config.check_draft_model(plain, None)
    with pytest.raises(ValueError, match="'x' and method token_recycling uses none; leave it out"):
        config.check_draft_model(plain, "x")
    method = Method("two", "", lambda models: (None, None), needs_draft_model=True)
    monkeypatch.setattr(config, "METHODS", METHODS | {"two": method})
    two = config.choose("two", None)
    config.check_draft_model(two, "x")
    with pytest.raises(ValueError, match="two needs a draft model"):
        config.check_draft_model(two, None)
    with pytest.raises(ValueError, match="choose one of two"):
        config.check_draft_model(plain, "x")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("token_recycling", {"num_speculative_tokens": 7}),
        ("token_recycling", {"num_speculative_tokens": 3, "k": 1}),
        ("token_recycling", {"k": 2}),
        ("token_recycling", {"template": ((0,), (0, 0)), "k": 4, "update_on_prefill": True}),
        ("prompt_lookup", {"prompt_lookup_max": 2, "num_speculative_tokens": 4, "whole": False}),
        ("token_recycling+prompt_lookup", {"k": 9, "per_row": True, "num_speculative_tokens": 3}),
    ],
)
def test_every_option_reaches_the_drafter(folder, method, options):
    assert options.keys() <= {option.name for option in METHODS[method].options}
    session = sessions.start(str(folder), None, config.Choice(METHODS[method], options), "float32")
    parts = [session.drafter]
    if method == "token_recycling+prompt_lookup":
        parts = [session.drafter.first, session.drafter.second]
    held = {key: value for part in parts for key, value in dataclasses.asdict(part).items()}
    for name, value in options.items():
        if name == "template":
            assert held["template"]["paths"] == value
        elif method == "token_recycling" and name == "num_speculative_tokens":
            assert len(held["template"]["paths"]) == value
        else:
            assert held[name] == value


def test_every_default_is_the_drafters_own(folder):
    for method in METHODS.values():
        if not method.needs_draft_model:
            sessions.start(str(folder), None, config.Choice(method, {}), "float32")


def test_a_template_has_its_own_size(folder):
    choice = config.choose(None, '{"template": [[0]], "num_speculative_tokens": 3}')
    with pytest.raises(ValueError, match="both given"):
        sessions.start(str(folder), None, choice, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", 2**31),
        ("batch_size", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", float("nan")),
        ("seed", -1),
        ("seed", 2**32),
    ],
)
def test_settings_have_bounds(field, value):
    with pytest.raises(ValueError, match=f"--{field.replace('_', '-')} is .*; pass"):
        Settings(**{field: value})
