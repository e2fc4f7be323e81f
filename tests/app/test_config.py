import dataclasses
import json

import jax
import pytest

import jspec
from jspec.app import config, sessions
from jspec.app.settings import Settings
from jspec.drafters.retrieval.token_recycling import MEASURED, PUBLISHED
from jspec.methods import device_defaults, registry
from jspec.methods.builders import Models
from jspec.methods.registry import METHODS
from jspec.models import load
from jspec.tree import Template


def test_method_and_config_name_the_choice():
    assert config.choose(None, None).method.name == registry.DEFAULT
    assert config.choose("prompt_lookup", None).method.name == "prompt_lookup"
    choice = config.choose(None, '{"method": "prompt_lookup", "max_match": 2}')
    assert (choice.method.name, choice.options) == ("prompt_lookup", {"max_match": 2})
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
        (
            "speculative_decoding",
            '{"scheme": "blok"}',
            "is 'blok'; pass coupled, recursive or block",
        ),
        ("speculative_decoding", '{"scheme": null}', "is None; pass coupled, "),
        ("spectr", '{"scheme": "block"}', "pass coupled or k_seq"),
        ("coupled_tree", '{"scheme": "coupled"}', "key of coupled_tree 'scheme' is unknown"),
        (
            "speculative_decoding",
            '{"draft_temperature": 0}',
            "is 0; pass a number in 1e-06 .. 1e.06",
        ),
        ("speculative_decoding", '{"draft_temperature": NaN}', "is nan; pass a number"),
        ("speculative_decoding", '{"draft_temperature": true}', "is True; pass a number"),
        ("dyspec", '{"threshold": "0"}', "is '0'; pass a number in 0 .. 1"),
        ("rsd_c", '{"branching": 3}', "is 3; pass a list such as .* each an integer in 1 .. 1024"),
        ("rsd_c", '{"branching": []}', "pass a list"),
        ("specinfer", '{"branching": [2, 0]}', "pass a list"),
        ("sequoia", '{"acceptance": [0.5, 1.1]}', "each a number in 0 .. 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(method, given, said):
    with pytest.raises(ValueError, match=said):
        config.choose(method, given)


def test_a_draft_model_goes_with_a_method_that_needs_one():
    plain, tree = config.choose(None, None), config.choose("coupled_tree", None)
    assert config.draft_model(plain, None, None) is None
    assert config.draft_model(tree, "some/target", "x") == "x"
    with pytest.raises(ValueError, match="coupled_tree needs a draft model"):
        config.draft_model(tree, "some/target", None)
    with pytest.raises(ValueError, match=r"choose one of sd, .*, coupled_tree"):
        config.draft_model(plain, None, "x")


def test_the_bundled_target_has_a_draft_model_of_its_own():
    tree = config.choose("coupled_tree", None)
    for model in (None, "jspec-7m"):
        assert config.draft_model(tree, model, None) == "jspec-800k"
        assert config.draft_model(tree, model, "x") == "x"


def test_a_scheme_that_draws_needs_a_temperature():
    def check(given, temperature):
        config.check_temperature(config.choose("speculative_decoding", given), temperature)

    check(None, 0.0)
    check('{"scheme": "coupled"}', 0.0)
    check('{"scheme": "block"}', 0.1)
    check('{"scheme": "block", "draft_temperature": 0.6}', 0.0)
    with pytest.raises(ValueError, match=r"scheme block draws .* add .draft_temperature.: 0.6"):
        check('{"scheme": "block"}', 0.0)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("token_recycling", {"num_speculative_tokens": 7}),
        ("token_recycling", {"num_speculative_tokens": 3, "k": 1}),
        ("token_recycling", {"k": 2}),
        ("token_recycling", {"template": ((0,), (0, 0)), "k": 4, "update_on_prefill": True}),
        ("prompt_lookup", {"max_match": 2, "num_speculative_tokens": 4, "whole": False}),
        ("token_recycling+prompt_lookup", {"k": 9, "per_row": True, "num_speculative_tokens": 3}),
    ],
)
def test_every_option_reaches_the_drafter(folder, method, options):
    assert options.keys() <= {option.name for option in METHODS[method].options}
    session = sessions.start(str(folder), None, config.Choice(METHODS[method], options), "float32")
    parts = [session.drafter]
    if method == "token_recycling+prompt_lookup":
        parts = session.drafter.drafters
    held = {key: value for part in parts for key, value in dataclasses.asdict(part).items()}
    for name, value in options.items():
        if name == "template":
            assert held["template"]["paths"] == value
        elif method == "token_recycling" and name == "num_speculative_tokens":
            assert len(held["template"]["paths"]) == value
        else:
            assert held[name] == value


@pytest.fixture(scope="module")
def both(folder, draft):
    return Models(load(folder), load(draft))


def test_every_default_is_the_drafters_own(both):
    for method in METHODS.values():
        if not (method.needs_options or method.needs_training):
            method.build(both)
    for name, drafter in {
        "speculative_decoding": jspec.SpeculativeDecoding,
        "spectr": jspec.SpecTr,
        "specinfer": jspec.SpecInfer,
        "rsd_c": jspec.RSDC,
        "rsd_s": jspec.RSDS,
        "dyspec": jspec.DySpec,
        "calibrated_dyspec": jspec.CalibratedDySpec,
        "coupled_tree": jspec.CoupledTree,
    }.items():
        assert METHODS[name].build(both) == (drafter(both.draft.model), both.draft.params)


GROWN = {"num_speculative_tokens": 5, "max_depth": 3, "beam": 4}


@pytest.mark.parametrize(
    ("method", "given", "wanted"),
    [
        ("speculative_decoding", {"num_speculative_tokens": 3, "scheme": "block"}, {"length": 3}),
        ("spectr", {"chains": 2, "length": 3, "scheme": "k_seq"}, {"chains": 2, "length": 3}),
        ("specinfer", {"branching": [2, 1], "scheme": "multi_round"}, {"branching": (2, 1)}),
        ("rsd_c", {"branching": [3], "scheme": "recursive"}, {"branching": (3,)}),
        ("rsd_s", {"width": 2, "length": 3, "scheme": "coupled"}, {"width": 2, "length": 3}),
        ("sequoia", {"template": [[0], [1]]}, {"tree": Template(((0,), (1,)))}),
        (
            "sequoia",
            {"num_speculative_tokens": 3, "acceptance": [0.9, 0.1]},
            {"tree": Template(((0,), (0, 0), (0, 0, 0)))},
        ),
        (
            "sequoia",
            {"num_speculative_tokens": 3, "acceptance": [0.9, 0.1], "max_depth": 2},
            {"tree": Template(((0,), (1,), (0, 0)))},
        ),
        ("dyspec", GROWN | {"threshold": 0.1}, {"nodes": 5, "beam": 4, "threshold": 0.1}),
        ("calibrated_dyspec", GROWN | {"threshold": 0}, {"nodes": 5, "max_depth": 3}),
        ("coupled_tree", GROWN, {"nodes": 5, "max_depth": 3, "beam": 4}),
    ],
)
def test_every_option_reaches_the_drafter_of_a_draft_model(both, method, given, wanted):
    given = given | ({} if method == "coupled_tree" else {"draft_temperature": 0.5})
    choice = config.choose(method, json.dumps(given))
    drafter, params = choice.method.build(both, **choice.options)
    assert params is both.draft.params and drafter.model == both.draft.model
    assert {name: getattr(drafter, name) for name in wanted} == wanted
    assert drafter.scheme == getattr(jspec.schemes, choice.scheme.upper())
    if method != "coupled_tree":
        assert drafter.sampling == jspec.Sampling(temperature=0.5)


def test_the_default_tree_of_sequoia_is_made_for_the_bundled_models(both):
    drafter, _ = METHODS["sequoia"].build(both)
    assert drafter.tree == device_defaults.sequoia() and len(drafter.tree.paths) == 15
    assert drafter.tree.depth == 5


def test_both_models_have_one_dtype(folder, draft):
    choice = config.choose("speculative_decoding", None)
    session = sessions.start(str(folder), str(draft), choice, "bfloat16")
    for params in (session.target.params, session.drafter_params):
        assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"bfloat16"}


def test_a_template_is_the_whole_tree(both):
    for method, key, value in (
        ("token_recycling", "num_speculative_tokens", 3),
        ("sequoia", "num_speculative_tokens", 3),
        ("sequoia", "acceptance", [0.5]),
        ("sequoia", "max_depth", 2),
    ):
        choice = config.choose(method, json.dumps({"template": [[0]], key: value}))
        with pytest.raises(ValueError, match=f"template and {key} were both given"):
            choice.method.build(both, **choice.options)


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


def test_trees_and_mixtures_by_name(both):
    build = lambda name, **options: METHODS[name].build(both, **options)[0]  # noqa: E731
    assert build("token_recycling", shape="published").template == PUBLISHED
    assert build("token_recycling", shape="measured").template == MEASURED
    for given in ({"num_speculative_tokens": 4}, {"template": ((0,),)}):
        with pytest.raises(ValueError, match="leave one of them out"):
            build("token_recycling", shape="published", **given)
    grown = build("dynamic_token_recycling", num_speculative_tokens=9, max_depth=3, beam=5, k=4)
    assert (grown.num_speculative_tokens, grown.max_depth, grown.beam, grown.k) == (9, 3, 5, 4)
    assert build("dynamic_token_recycling").num_speculative_tokens == device_defaults.budget()
    small, given = build("lookahead"), build("lookahead", guesses=3)
    assert small.levels * (small.window + small.guesses) - 1 == device_defaults.budget(55)
    assert (given.window, given.ngram, given.guesses) == (7, 5, 3)
    wide = jspec.Lookahead(9, **device_defaults.lookahead(64))
    assert (wide.window, wide.ngram, wide.guesses) == (8, 5, 8)
    mixture = build("token_recycling+suffix", num_speculative_tokens=9, per_row=True, min_match=2)
    recycling, suffix = mixture.drafters
    assert (mixture.num_speculative_tokens, recycling.per_row, suffix.min_match) == (9, True, 2)
    assert recycling.num_speculative_tokens == suffix.num_speculative_tokens == 32
    deep = build("token_recycling+suffix", max_depth=5)
    assert [drafter.max_depth for drafter in deep.drafters] == [5, 5]
    wide = build("token_recycling+suffix", num_speculative_tokens=64)
    assert [wide.drafters[0].num_speculative_tokens, wide.drafters[1].num_speculative_tokens] == [
        64,
        64,
    ]
    assert build("token_recycling+suffix").num_speculative_tokens == device_defaults.budget()
    assert (
        build("token_recycling+prompt_lookup", num_speculative_tokens=9).num_speculative_tokens == 9
    )


@pytest.fixture(scope="module")
def bundled():
    return Models(load("jspec-7m"))


@pytest.mark.parametrize("on_cpu", [True, False])
def test_methods_with_a_bundled_head_can_be_built_everywhere(bundled, monkeypatch, on_cpu):
    """Their defaults fit one another, alone and as members of a mixture."""
    monkeypatch.setattr(trees, "_on_cpu", lambda: on_cpu)
    trained = [method for method in METHODS.values() if method.needs_training]
    assert {"eagle", "eagle2", "medusa", "lyanna", "lyanna+suffix"} <= {m.name for m in trained}
    for method in trained:
        method.build(bundled)
    METHODS["lyanna+suffix"].build(bundled, num_speculative_tokens=100, branch=2)
    METHODS["lyanna"].build(bundled, beam=1)
    METHODS["eagle2"].build(bundled, beam=1)
    METHODS["eagle2"].build(bundled, num_speculative_tokens=100)
