"""The methods by name. A line here and the drafter's class are all that a new one needs.

`jspec.methods.build`, `--method`, `--speculative-config` and `jspec methods` all derive from
`METHODS`. What options a method has, of which kind and meaning, say the fields of its class and
their docstring. Nothing here imports JAX, so that a wrong name is answered at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from jspec._validate.kinds import COUNT
from jspec._validate.options import Option, options_of
from jspec.methods import builders
from jspec.methods.builders import WITHOUT_REPLACEMENT, Build, coupled, drafting
from jspec.methods.merges import competing, joined_by, united
from jspec.methods.method import Built, Maker, Method, Models

DEFAULT = "auto"
"""The method of the command line if none is named."""


def _method(
    name: str,
    summary: str,
    drafter: str,
    build: Build = builders.alone,
    member: Build | None = None,
    **facts: bool,
) -> Method:
    """The method of one drafter.

    Args:
        name: of the method.
        summary: its proposals.
        drafter: the public name of its class in `jspec`.
        build: makes the drafter of the class, the models and the options.
        member: the same, as a member of a merge.
        facts: further fields of `Method`.
    """

    def kind() -> Any:
        import jspec

        return getattr(jspec, drafter)

    def bound(build: Build) -> Maker:
        def make(models: Models, **options: Any) -> Built:
            return build(kind(), models, **options)

        return make

    return Method(
        name,
        summary,
        bound(build),
        lambda: {**options_of(kind()), **options_of(build)},
        member and bound(member),
        **facts,
    )


def _together(*members: Method, help: str = "drafted nodes") -> Callable[[], Mapping[str, Option]]:
    """The options of all members, each name once, and one budget."""

    def read() -> Mapping[str, Option]:
        found: dict[str, Option] = {}
        for member in reversed(members):
            found |= member.read_options()
        return found | {"num_speculative_tokens": Option("num_speculative_tokens", COUNT, help)}

    return read


def _merge(*members: Method, name: str) -> Method:
    """The method in which the members' likeliest nodes make one tree."""
    return Method(
        name,
        f"{'both' if len(members) == 2 else 'all'}, in one tree of the nodes that are likeliest",
        competing(*members),
        _together(*members),
        needs_training=any(member.needs_training for member in members),
    )


def _widened(method: Method, build: Callable[..., Built] = builders.widened) -> Method:
    """The method, with the option to choose the width of every round."""
    own = {**options_of(builders.widened), **options_of(build)}
    return replace(
        method,
        make=partial(build, method.make),
        read_options=lambda: {**method.read_options(), **own},
    )


# Methods that merges are made of.

_TOKEN_RECYCLING = _method(
    "token_recycling",
    "a tree of what earlier forward passes thought likely",
    "TokenRecycling",
    builders.token_recycling,
)
_DYNAMIC = _method(
    "dynamic_token_recycling",
    "its likeliest paths, by the probabilities that earlier forward passes gave them",
    "DynamicTokenRecycling",
    builders.dynamic_token_recycling,
)
_PROMPT_LOOKUP = _method(
    "prompt_lookup",
    "what followed the last tokens when they stood in the text before",
    "PromptLookup",
)
_SUFFIX = _method(
    "suffix",
    "a tree of what followed the longest endings of the text, past outputs included",
    "Suffix",
)
_REST = _method(
    "rest",
    "what most often followed the last tokens in a datastore of text",
    "REST",
    builders.rest,
    builders.rest_member,
)
_LYANNA = _method(
    "lyanna",
    "states first, tokens afterwards, and what was rejected drafts again",
    "Lyanna",
    builders.lyanna,
    builders.lyanna_member,
    needs_training=True,
)
_COUPLED_TREE = _method(
    "coupled_tree",
    "a tree grown by the noise that the target will draw with",
    "CoupledTree",
    coupled,
    needs_draft_model=True,
)
_EAGLE2 = _method(
    "eagle2",
    "a tree that the head's confidence shapes (EAGLE-2)",
    "EAGLE2",
    builders.eagle2,
    needs_training=True,
)
_MEDUSA = _method(
    "medusa",
    "a tree of the tokens that heads on one state think likely, each a place further on",
    "Medusa",
    builders.medusa,
    needs_training=True,
)
_BLOCK = _method(
    "block",
    "a tree from a whole block of probabilities that a head gives at once, ranked by the noise",
    "BlockDrafter",
    builders.block,
    needs_training=True,
)
_BY_HEAD = {
    "block": _BLOCK,
    "eagle": _EAGLE2,
    "eagle3": _EAGLE2,
    "lyanna": _LYANNA,
    "medusa": _MEDUSA,
    "mtp": _EAGLE2,
}

# Every method, in the order in which they are listed.

_AUTO = Method(
    "auto",
    "what is recommended: dynamic_token_recycling with the model's n-grams, suffix, the head that "
    "comes with the weights, a head or draft model if given; every round as wide as pays",
    joined_by(_DYNAMIC, _SUFFIX, draft_model=_COUPLED_TREE, heads=_BY_HEAD),
    _together(_DYNAMIC, _SUFFIX),
    takes_draft_model=True,
)
_PLAIN = _method("autoregressive", "nothing: plain decoding", "Autoregressive", drafts=False)
_FIXED = (
    _TOKEN_RECYCLING,
    _DYNAMIC,
    _PROMPT_LOOKUP,
    _method(
        "lookahead",
        "n-grams that the model wrote beside the text, in a window of guesses",
        "Lookahead",
        builders.lookahead,
    ),
    _SUFFIX,
    _REST,
    Method(
        "token_recycling+prompt_lookup",
        "both, in one tree",
        united(_TOKEN_RECYCLING, _PROMPT_LOOKUP),
        _together(_TOKEN_RECYCLING, _PROMPT_LOOKUP, help="drafted nodes, the likeliest; else all"),
    ),
    _merge(_DYNAMIC, _SUFFIX, name="token_recycling+suffix"),
    _merge(_DYNAMIC, _SUFFIX, _REST, name="token_recycling+suffix+rest"),
    _merge(_LYANNA, _SUFFIX, name="lyanna+suffix"),
    _merge(_BLOCK, _SUFFIX, name="block+suffix"),
    _merge(_EAGLE2, _DYNAMIC, name="eagle2+token_recycling"),
    *(
        _method(name, summary, drafter, build, needs_draft_model=True)
        for name, summary, drafter, build in (
            (
                "speculative_decoding",
                "a chain from the draft model",
                "SpeculativeDecoding",
                drafting("recursive", "block"),
            ),
            (
                "pard",
                "a chain or tree from one forward of a draft model with mask tokens",
                "PARD",
                builders.pard,
            ),
            ("spectr", "independent chains", "SpecTr", drafting("k_seq")),
            ("specinfer", "a tree of independent draws", "SpecInfer", drafting("multi_round")),
            (
                "sequoia",
                "the tree that is best for an acceptance vector",
                "Sequoia",
                builders.sequoia,
            ),
            ("rsd_c", "a tree of draws without replacement", "RSDC", WITHOUT_REPLACEMENT),
            ("rsd_s", "the sequences of a stochastic beam", "RSDS", WITHOUT_REPLACEMENT),
            (
                "dyspec",
                "a tree grown by the draft's own probabilities",
                "DySpec",
                WITHOUT_REPLACEMENT,
            ),
            (
                "calibrated_dyspec",
                "a tree grown by learnt acceptance rates",
                "CalibratedDySpec",
                WITHOUT_REPLACEMENT,
            ),
        )
    ),
    _COUPLED_TREE,
    _method(
        "eagle",
        "a fixed tree from the target's states and a trained head (EAGLE-1)",
        "EAGLE",
        builders.eagle,
        needs_training=True,
    ),
    _EAGLE2,
    _MEDUSA,
    _LYANNA,
    _BLOCK,
)

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (_widened(_AUTO, builders.recommended), _PLAIN, *map(_widened, _FIXED))
}
