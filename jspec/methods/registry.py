"""The methods by name. A line here and the drafter's class are all that a new one needs.

`jspec.LLM`, `--method`, `--speculative-config` and `jspec methods` all derive from
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
from jspec.methods.builders import Fit
from jspec.methods.llm import LLM
from jspec.methods.merges import build_auto, build_merge
from jspec.methods.method import Method

DEFAULT = "auto"
"""The method of the command line if none is named."""
GONE = {
    "block+suffix": "auto, with the option head",
    "lyanna+suffix": "auto, with the option head",
    "token_recycling+prompt_lookup": "spine, which copies the text by itself",
    "calibrated_dyspec": "coupled_tree",
    "dynamic_token_recycling": "spine",
    "informed_medusa": "medusa",
    "token_recycling+suffix": "spine, which copies the text by itself",
    "token_recycling+suffix+rest": "spine+rest",
    "eagle2+token_recycling": "eagle2+spine",
}
"""What to use instead of methods that 0.3 had, for one version."""
VLLM_NAMES = {
    "ngram": "prompt_lookup",
    "draft_model": "speculative_decoding",
    "eagle3": "eagle",
    "mtp": "auto",
}
"""Methods that vLLM names otherwise."""
_EAGLES = ("eagle", "eagle3", "mtp")
_DRAWN = ("recursive", "traversal")
"""The schemes for children that are drawn without replacement."""


def _method(
    name: str,
    drafter: str,
    summary: str,
    fit: Fit = builders.as_given,
    schemes: tuple[str, ...] = (),
    heads: tuple[str, ...] = (),
    **facts: Any,
) -> Method:
    """Returns the method of one drafter; see `builders.build`, and `Method` for the `facts`."""
    make = partial(builders.build, drafter, fit, heads)
    read_options = partial(builders.options, drafter, fit, schemes, heads)
    return Method(name, summary, make, read_options, needs_training=bool(heads), **facts)


_drafting = partial(_method, needs_draft_model=True)


def _together(*members: Method) -> Callable[[], Mapping[str, Option]]:
    """Returns the options of all members, each name once, and one budget."""

    def read() -> Mapping[str, Option]:
        options: dict[str, Option] = {}
        for member in reversed(members):
            options |= member.read_options()
        return options | {
            "num_speculative_tokens": Option("num_speculative_tokens", COUNT, "drafted nodes")
        }

    return read


def _merge(name: str, *members: Method) -> Method:
    """Returns the method in which the members' likeliest nodes make one tree."""
    which = "both methods'" if len(members) == 2 else "all methods'"
    return Method(
        name,
        f"{which} likeliest nodes, in one tree",
        build_merge(*members),
        _together(*members),
        needs_training=any(member.needs_training for member in members),
    )


def _widen(method: Method, build: Callable[..., LLM] = builders.widen) -> Method:
    """Returns the method, with the option to choose the width of every round."""
    extra = {**options_of(builders.widen), **options_of(build)}
    return replace(
        method,
        make=partial(build, method.make),
        read_options=lambda: {**method.read_options(), **extra},
    )


# Methods that merges are made of.

_TOKEN_RECYCLING = _method(
    "token_recycling",
    "TokenRecycling",
    "a fixed tree of the tokens that earlier forward passes ranked highly",
    builders.token_recycling,
)
_SPINE = _method(
    "spine",
    "Spine",
    "one of six trees around a copy of the text, with branches of likely tokens",
    builders.spine,
    most=builders.most_of_spine,
)
_PROMPT_LOOKUP = _method(
    "prompt_lookup",
    "PromptLookup",
    "what followed the last tokens when they occurred before",
)
_SUFFIX = _method(
    "suffix",
    "Suffix",
    "a tree of what followed the longest endings of the text, past outputs included",
)
_REST = _method(
    "rest",
    "REST",
    "what most often followed the last tokens in a datastore of text",
    builders.rest,
    most=builders.most_of_rest,
)
_LYANNA = _method(
    "lyanna",
    "Lyanna",
    "a tree from a chain of states, and after a rejection another one from the same states",
    builders.lyanna,
    heads=("lyanna",),
    most=builders.most_of_lyanna,
)
_COUPLED_TREE = _drafting(
    "coupled_tree", "CoupledTree", "a tree grown by the noise with which the target will sample"
)
_EAGLE2 = _method(
    "eagle2",
    "EAGLE2",
    "a tree that the head's confidence shapes (EAGLE-2)",
    builders.eagle2,
    heads=_EAGLES,
)
_MEDUSA = _method(
    "medusa",
    "Medusa",
    "a tree from heads that each predict the token at one distance",
    builders.medusa,
    heads=("medusa",),
)
_BLOCK = _method(
    "block",
    "BlockDrafter",
    "a tree from a head's distributions of a whole block, ranked by the noise of sampling",
    builders.block,
    heads=("block",),
)
_BY_HEAD = {"block": _BLOCK, "lyanna": _LYANNA, "medusa": _MEDUSA} | dict.fromkeys(_EAGLES, _EAGLE2)

# Every method, in the order in which they are listed.

_AUTO = Method(
    "auto",
    "spine with the model's n-grams, and a head or draft model if there is one; each round "
    "verifies as many nodes as pay",
    build_auto(_SPINE, draft_model=_COUPLED_TREE, heads=_BY_HEAD),
    _together(_SPINE),
    takes_draft_model=True,
)
_PLAIN = _method("autoregressive", "Autoregressive", "nothing: plain decoding", drafts=False)
_FIXED = (
    _SPINE,
    _TOKEN_RECYCLING,
    _PROMPT_LOOKUP,
    _method(
        "lookahead",
        "Lookahead",
        "n-grams collected from a window of guesses",
        builders.lookahead,
    ),
    _SUFFIX,
    _REST,
    _merge("spine+rest", _SPINE, _REST),
    _merge("eagle2+spine", _EAGLE2, _SPINE),
    _drafting(
        "speculative_decoding",
        "SpeculativeDecoding",
        "a chain from the draft model",
        schemes=("recursive", "block"),
    ),
    _drafting(
        "pard",
        "PARD",
        "a chain or tree from one forward pass of a draft model with mask tokens",
        builders.pard,
        _DRAWN,
    ),
    _drafting("spectr", "SpecTr", "several independent chains", schemes=("k_seq",)),
    _drafting("specinfer", "SpecInfer", "a tree of independent draws", schemes=("multi_round",)),
    _drafting(
        "sequoia",
        "Sequoia",
        "a tree whose shape is best for given acceptance rates",
        builders.sequoia,
        _DRAWN,
    ),
    _drafting("rsd_c", "RSDC", "a tree of draws without replacement", schemes=_DRAWN),
    _drafting("rsd_s", "RSDS", "a tree of a stochastic beam search's sequences", schemes=_DRAWN),
    _drafting("dyspec", "DySpec", "a tree grown by the draft's own probabilities", schemes=_DRAWN),
    _COUPLED_TREE,
    _method(
        "eagle",
        "EAGLE",
        "a fixed tree from the target's states and a trained head (EAGLE-1)",
        builders.eagle,
        _DRAWN,
        _EAGLES,
    ),
    _EAGLE2,
    _MEDUSA,
    _LYANNA,
    _BLOCK,
)

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (_widen(_AUTO, builders.build_auto), _PLAIN, *map(_widen, _FIXED))
}
