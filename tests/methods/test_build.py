"""`jspec.LLM`: a program gets what the command line gets, in one call."""

import itertools
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
import refusals
import tiny

import jspec
from jspec import methods
from jspec._validate.errors import InputError
from jspec.drafters.contrib.ngram_table import NGramTable
from jspec.drafters.retrieval.token_recycling import MEASURED, PUBLISHED
from jspec.methods import METHODS, device_defaults
from jspec.methods.registry import GONE
from jspec.models import load
from jspec.models.load import Loaded
from jspec.sessions import method_choice
from jspec.sessions import session as sessions
from jspec.tree import Template

pytestmark = pytest.mark.usefixtures("heads_once")


def test_names_and_entries_are_public():
    assert methods.names() == tuple(METHODS) and methods.DEFAULT in methods.names()
    for name in methods.names():
        assert methods.describe(name).name == name
    with pytest.raises(InputError, match=r"'sufix' is unknown; did you mean suffix\?"):
        methods.describe("sufix")


def test_methods_that_are_gone_say_what_to_use():
    for name, instead in GONE.items():
        assert instead.partition(",")[0] in METHODS and name not in METHODS
        with pytest.raises(InputError, match=re.escape(f"method {name} is gone; use {instead}")):
            methods.describe(name)


@pytest.mark.parametrize("name", ["auto", "token_recycling"])
def test_a_vocabulary_smaller_than_a_line_of_the_matrix(name):
    model = jspec.testing.PrefixLM(vocab_size=5)
    built = jspec.LLM(Loaded(model, model.init(), None, eos=(), bos=None), name)
    ask = dict(drafter=built.drafter, drafter_params=built.drafter_params)
    jspec.prefill(built.model, model.init(), [[1, 2, 1]], max_new_tokens=4, **ask)


GROWN = {"num_speculative_tokens": 5, "max_depth": 3, "beam": 4}


def test_a_program_gets_the_bundled_head_and_draft_model(bundled):
    built = jspec.LLM(bundled, "eagle")
    assert built.model == bundled.model and built.drafter.head.vocab_size == 4096
    session = sessions.start("jspec-7m", None, method_choice.choose("eagle", None), None)
    assert jspec.LLM(session.target, "eagle").drafter == session.llm.drafter
    small = load("jspec-800k")
    found = jspec.LLM(bundled, "coupled_tree")
    assert found.drafter == jspec.CoupledTree(small.model)
    same = jax.tree.map(np.array_equal, found.drafter_params, small.params)
    assert all(jax.tree.leaves(same))


def test_options_that_do_not_fit_are_one_sentence(target):
    """Kinds and bounds of options are read as on the command line: test_method_choice.py."""
    refusals.check(
        [
            (("rest", {}), "rest needs datastore, the text to search; pass datastore: a file of `"),
            (("rest", {"datastore": "/absent"}), "/absent"),
            (("token_recycling", {"k": 10**6}), "k is 1000000; pass an integer in 1 .."),
            (("token_recycling", {"template": [[8]]}), "drafts rank 8|parent"),
            (("suffix", {"token_budget": 0.5}), "suffix's option 'token_budget' is unknown"),
        ],
        lambda row: jspec.LLM(target, row[0], **row[1]),
    )


def test_models_that_do_not_fit_are_refused(target, draft, loaded, words):
    known = {str(i): i for i in range(tiny.VOCAB)}
    wide = loaded(tiny.draft(vocab_size=tiny.VOCAB + 1), words({"a": 0}))
    others = (
        words({"a": 0}),
        words({}),
        words({**known, "x": 3, "y": 4}, [3]),  # 3 is an added token, and 4 is not
        words({f"other {i}": i for i in range(tiny.VOCAB)}, range(tiny.VOCAB)),
    )
    llm, named = jspec.LLM, "pass a name or what"
    bare = jspec.models.Loaded({"a": 1}, ())
    no_apply = "model is .*, which has no apply; pass a model"
    refusals.check([
        (lambda: llm(target.model, "suffix"), f"model is of type Llama; {named} jspec.models"),
        (lambda: llm({"a": 1}, drafter=jspec.Suffix()), f"model is of type dict; {named}"),
        (lambda: llm(bare, "auto"), no_apply),
        (lambda: jspec.warmup({"a": 1}, (), prompt_tokens=4), no_apply),
        (lambda: llm(target, "dyspec", draft=draft.model), f"draft is of type Llama; {named}"),
        (lambda: llm(target, "dyspec", draft_model=draft), "draft_model is .*; pass draft=.., a"),
        (lambda: llm(target, "suffix", draft=draft), "given and method suffix uses none"),
        (lambda: llm(target, "dyspec"), "dyspec needs a draft model and none was given"),
        (lambda: llm(target, "eagle"), "no bundled eagle head was trained for this model"),
        (
            lambda: llm(target, "dyspec", draft=wide),
            f"{tiny.VOCAB + 1} tokens and the target one of",
        ),
        *(
            (
                lambda one=one: llm(target, "dyspec", draft=loaded(tiny.draft(), one)),
                "but other ones",
            )
            for one in others
        ),
    ])  # fmt: skip


def test_a_draft_of_another_padding_is_made_a_pair(target, loaded):
    for difference in (-3, 4):
        draft = loaded(tiny.draft(vocab_size=tiny.VOCAB + difference))
        built = jspec.LLM(target, "speculative_decoding", draft=draft)
        assert built.drafter.model == jspec.PaddedVocabulary(draft.model, tiny.VOCAB)
        # What one of the two has not is -inf or dropped, and such an id is read as the last one.
        size, texts = tiny.VOCAB + difference, np.array([[1, tiny.VOCAB - 1, 2]])
        scores = tiny.forward(built.drafter.model, draft.params, texts).logits
        own = tiny.forward(draft.model, draft.params, np.minimum(texts, size - 1)).logits
        np.testing.assert_array_equal(scores[..., :size], own[..., : tiny.VOCAB])
        assert scores.shape[-1] == tiny.VOCAB and (scores[..., size:] == -np.inf).all()


def test_added_tokens_may_differ(loaded, words):
    """As in fine-tuned targets, and in drafts: what a draft proposes is verified all the same."""
    known = {str(i): i for i in range(tiny.VOCAB - 2)}
    last = tiny.VOCAB - 2
    tokenizers = (
        words(known),
        words({**known, "<think>": last, "</think>": last + 1}, [last, last + 1]),
        words({**known, "<call>": last}, [last]),
        words({**known, "more": last}),
        words({token: i for token, i in known.items() if i > 3} | {"<s>": 3}, [3]),
    )
    for ours, theirs in itertools.permutations(tokenizers, 2):
        for size in (tiny.VOCAB, tiny.VOCAB + 2):
            draft = loaded(tiny.draft(vocab_size=size), theirs)
            built = jspec.LLM(loaded(tiny.model(), ours), "dyspec", draft=draft)
            assert built.drafter.model.vocab_size == tiny.VOCAB


def test_the_mask_of_a_parallel_draft_is_that_of_its_checkpoint(target, draft):
    built = jspec.LLM(target, "pard", draft=draft)
    assert built.drafter == jspec.PARD(draft.model, draft.mask_token_id)
    built = jspec.LLM(target, "pard", draft=draft, mask_token_id=3, num_speculative_tokens=5)
    assert built.drafter == jspec.PARD(draft.model, 3, jspec.tree.chain(5))
    shape = jspec.tree.branching([2, 1])
    built = jspec.LLM(target, "pard", draft=draft, template=shape, scheme="recursive")
    assert built.drafter == jspec.PARD.published(
        draft.model, mask_token_id=draft.mask_token_id, template=shape
    )
    plain = replace(draft, mask_token_id=None)
    with pytest.raises(InputError, match=r"pard needs a mask token .* has no pard_token; name a"):
        jspec.LLM(target, "pard", draft=plain)
    assert jspec.LLM(target, "pard", draft=plain, mask_token_id=1).drafter.mask_token_id == 1
    with pytest.raises(InputError, match="mask_token_id is 99; pass an integer in 0"):
        jspec.LLM(target, "pard", draft=draft, mask_token_id=99)


def test_options_come_as_python_has_them(target, draft):
    template = Template(((0,), (1,), (0, 0)))
    for given in (template, template.paths, [list(path) for path in template.paths]):
        assert jspec.LLM(target, "sequoia", draft=draft, template=given).drafter == (
            jspec.Sequoia(draft.model, template)
        )
    built = jspec.LLM(target, "suffix", num_speculative_tokens=np.int64(3), factor=np.float32(2))
    assert built.drafter == jspec.Suffix(num_speculative_tokens=3, factor=2.0)
    assert type(built.drafter.num_speculative_tokens) is int, "drafters are static and hashable"


def test_the_defaults_are_the_drafters_own(target, draft):
    for name, drafter in {
        "speculative_decoding": jspec.SpeculativeDecoding,
        "spectr": jspec.SpecTr,
        "specinfer": jspec.SpecInfer,
        "rsd_c": jspec.RSDC,
        "rsd_s": jspec.RSDS,
        "dyspec": jspec.DySpec,
        "coupled_tree": jspec.CoupledTree,
    }.items():
        built = jspec.LLM(target, name, draft=draft)
        assert (built.model, built.drafter) == (target.model, drafter(draft.model))
        assert built.drafter_params is draft.params


OPTIONS = [
    ("speculative_decoding", {"num_speculative_tokens": 3, "scheme": "block"}, {}),
    ("spectr", {"num_chains": 2, "max_depth": 3, "scheme": "k_seq"}, {}),
    ("specinfer", {"branching": [2, 1], "scheme": "multi_round"}, {"branching": (2, 1)}),
    ("rsd_c", {"branching": [3], "scheme": "recursive"}, {"branching": (3,)}),
    ("rsd_s", {"beam": 2, "max_depth": 3, "scheme": "coupled"}, {}),
    ("sequoia", {"template": [[0], [1]]}, {"template": Template(((0,), (1,)))}),
    (
        "sequoia",
        {"num_speculative_tokens": 3, "acceptance": [0.9, 0.1]},
        {"template": Template(((0,), (0, 0), (0, 0, 0)))},
    ),
    (
        "sequoia",
        {"num_speculative_tokens": 3, "acceptance": [0.9, 0.1], "max_depth": 2},
        {"template": Template(((0,), (1,), (0, 0)))},
    ),
    ("dyspec", GROWN | {"threshold": 0.1}, {}),
    ("coupled_tree", GROWN, {}),
]


def test_every_option_reaches_the_drafter_of_a_draft_model(target, draft):
    for method, given, wanted in OPTIONS:
        given = given | ({} if method == "coupled_tree" else {"draft_temperature": 0.5})
        built = jspec.LLM(target, method, draft=draft, **given)
        assert built.drafter_params is draft.params and built.drafter.model == draft.model
        made = ("scheme", "draft_temperature", "acceptance")
        simple = {name: value for name, value in given.items() if name not in made}
        for name, value in (({} if method == "sequoia" else simple) | wanted).items():
            assert getattr(built.drafter, name) == value, name
        scheme = getattr(jspec.schemes, given.get("scheme", "coupled").upper())
        assert built.drafter.scheme == scheme
        if method != "coupled_tree":
            assert built.drafter.sampling == jspec.Sampling(temperature=0.5)


def drafter(target, name, **options):
    return jspec.LLM(target, name, **options).drafter


def test_every_option_reaches_the_drafter(target):
    made = drafter(target, "token_recycling", num_speculative_tokens=3, k=1)
    assert len(made.template.paths) == 3 and made.k == 1
    made = drafter(target, "token_recycling", template=((0,), (0, 0)), k=4, update_on_prefill=True)
    assert (made.template.paths, made.k, made.update_on_prefill) == (((0,), (0, 0)), 4, True)
    made = drafter(target, "prompt_lookup", max_match=2, whole=False)
    assert made == jspec.PromptLookup(max_match=2, whole=False)


def test_trees_fit_the_device(target, draft):
    made = drafter(target, "sequoia", draft=draft)  # for the bundled models
    assert made.template == device_defaults.sequoia() and len(made.template.paths) == 15
    assert made.template.depth == 5
    assert drafter(target, "token_recycling", shape="published").template == PUBLISHED
    assert drafter(target, "token_recycling", shape="measured").template == MEASURED
    given = drafter(target, "spine", num_speculative_tokens=9, max_depth=3, passes=2, k=4)
    assert given == jspec.Spine(tiny.VOCAB, 9, max_depth=3, passes=2, k=4)
    default = drafter(target, "spine")
    assert default.num_speculative_tokens == device_defaults.budget()
    small, given = drafter(target, "lookahead"), drafter(target, "lookahead", guesses=3)
    assert small.levels * (small.window + small.guesses) - 1 == device_defaults.budget(55)
    assert (given.window, given.ngram, given.guesses) == (7, 5, 3)


def test_a_mixture_shares_its_options_and_bounds_its_tree(bundled):
    mixture = drafter(bundled, "eagle2+spine", num_speculative_tokens=9, beam=6, passes=2)
    head, spine = mixture.drafters
    assert (mixture.num_speculative_tokens, head.beam, spine.passes) == (9, 6, 2)
    offered = [member.num_speculative_tokens for member in mixture.drafters]
    assert offered == [32, device_defaults.widths()[-1]], "Spine as many as in `auto`"
    deep = drafter(bundled, "eagle2+spine", max_depth=5)
    assert [member.max_depth for member in deep.drafters] == [5, 5]
    wide = drafter(bundled, "eagle2+spine", num_speculative_tokens=100)
    assert wide.drafters[0].num_speculative_tokens == wide.num_speculative_tokens == 100
    default = drafter(bundled, "eagle2+spine")
    assert default.num_speculative_tokens == device_defaults.budget()


@pytest.mark.parametrize("on_cpu", [True, False])
def test_methods_with_a_head_can_be_built_everywhere(bundled, block_head, monkeypatch, on_cpu):
    """Their defaults fit one another, alone and as members of a mixture."""
    monkeypatch.setattr(device_defaults, "_on_cpu", lambda: on_cpu)
    trained = [method.name for method in METHODS.values() if method.needs_training]
    assert {"eagle", "eagle2", "medusa", "lyanna"} <= set(trained)
    for name in trained:
        files = {"head": block_head} if "block" in name.split("+") else {}
        jspec.LLM(bundled, name, **files)
    jspec.LLM(bundled, "lyanna", beam=1)
    jspec.LLM(bundled, "block", head=block_head, num_speculative_tokens=100)
    jspec.LLM(bundled, "block", head=block_head, beam=1)
    assert device_defaults.block(63, 8, None) == (63, 8)
    assert device_defaults.block(15, 8, None) == (15, 4 if on_cpu else 8)
    jspec.LLM(bundled, "eagle2", beam=1)
    jspec.LLM(bundled, "eagle2", num_speculative_tokens=100)


def test_every_method_but_plain_decoding_takes_widths(target, draft):
    takes = [name for name in METHODS if "widths" in {o.name for o in METHODS[name].options}]
    assert set(METHODS) - set(takes) == {"autoregressive"}
    for name, options in (
        ("suffix", {"num_speculative_tokens": 5}),
        ("spine", {"num_speculative_tokens": 5}),
        ("speculative_decoding", {"num_speculative_tokens": 5}),
    ):
        other = draft if METHODS[name].needs_draft_model else None
        fixed = jspec.LLM(target, name, draft=other, **options)
        built = jspec.LLM(target, name, draft=other, widths=[0, 2, 5], **options)
        assert (built.drafter, built.policy) == (fixed.drafter, jspec.Adaptive((0, 2, 5)))
        assert built.model is fixed.model
        assert built.drafter_params is fixed.drafter_params
        guess = jspec.costs.prior(target.params)
        np.testing.assert_array_equal(built.policy_params.seconds, guess.seconds)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_auto_is_spine_with_widths_that_fit_the_device(target, monkeypatch, on_cpu):
    monkeypatch.setattr(device_defaults, "_on_cpu", lambda: on_cpu)
    widths = (0, 7) if on_cpu else (0, 15, 63)
    built = jspec.LLM(target, "auto")
    assert built.policy.widths == device_defaults.widths() == widths
    assert built.drafter == jspec.Spine(tiny.VOCAB, widths[-1])
    given = jspec.LLM(target, "auto", widths=[0, 9], passes=2, k=4)
    assert given.policy.widths == (0, 9)
    assert given.drafter == jspec.Spine(tiny.VOCAB, 9, passes=2, k=4)
    assert jspec.LLM(target, "auto", widths=[0]).policy.widths == (0,)


def test_auto_takes_what_is_given(target, draft, bundled):
    """A draft model and a head draft along with the others; without them nothing changes.

    The table of n-grams is that of the weights; there is none for others, or for other methods.
    """
    assert isinstance(jspec.LLM(bundled, "auto").drafter_params, NGramTable)
    usual = jspec.LLM(target, "auto")
    assert usual.drafter_params is None
    assert jspec.LLM(bundled, "spine").drafter_params is None
    with_draft = jspec.LLM(target, "auto", draft=draft)
    first, last = with_draft.drafter.drafters
    assert first == usual.drafter and isinstance(last, jspec.CoupledTree)
    assert with_draft.drafter_params[-1] is draft.params
    for head, kind in (("eagle", jspec.EAGLE2), ("lyanna", jspec.Lyanna), ("medusa", jspec.Medusa)):
        name = next(name for name in jspec.models.heads.bundled() if head in name)
        first, last = jspec.LLM(bundled, "auto", head=name).drafter.drafters
        assert isinstance(first, jspec.Spine) and isinstance(last, kind)


def test_widths_and_trees_that_do_not_fit_are_one_sentence(target, draft):
    def build(given):
        name, options = given
        other = draft if METHODS[name].needs_draft_model else None
        jspec.LLM(target, name, draft=other, **options)

    drawn, alone = {"widths": [0, 2], "scheme": "recursive"}, {"template": [[0]]}
    own = "have a verifier of their own: .*; .* give the drafter scheme=jspec.schemes.COUPLED"
    refusals.check(
        [
            (("auto", {"widths": [3, 0]}), r"widths is \(3, 0\); give rising numbers of drafted"),
            (("suffix", {"widths": [0, 3, 3]}), r"widths is \(0, 3, 3\); give rising"),
            (("auto", {"widths": []}), r"widths is \[\]; pass a list such as \[0, 3, 7, 15\]"),
            (("auto", {"widths": 7}), "widths is 7; pass a list such as"),
            (("auto", {"widths": "wide"}), "widths is 'wide'; pass a list"),
            (("suffix", {"widths": [0, 5000]}), r"\[0, 5000\]; pass a list .* in 0 \.\. 4096"),
            (("suffix", {"widths": [-1, 2]}), r"\[-1, 2\]; pass a list"),
            (("autoregressive", {"widths": [0]}), "autoregressive's option 'widths' is unknown"),
            (("speculative_decoding", drawn), own),
            (("rsd_s", drawn), "would not be lossless"),
            *(
                ((method, alone | more), r"template.* were both given.*leave one of")
                for method, more in (
                    ("token_recycling", {"num_speculative_tokens": 3}),
                    ("token_recycling", {"shape": "published"}),
                    ("sequoia", {"num_speculative_tokens": 3}),
                    ("sequoia", {"acceptance": [0.5]}),
                    ("sequoia", {"max_depth": 2}),
                )
            ),
            (
                ("token_recycling", {"shape": "published", "num_speculative_tokens": 4}),
                "shape published and num_speculative_tokens were",
            ),
        ],
        build,
    )
