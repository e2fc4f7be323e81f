"""The methods that the command line offers. One entry here is all that a new one needs.

The `methods` command, `--method` and `--speculative-config` all derive from `METHODS`. Nothing here
imports JAX before a drafter is built, so that a typing error is answered at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jspec.methods import builders
from jspec.methods.builders import COUPLED, Build, Models
from jspec.methods.options import Flag, Integer, Number, Option, Paths, Place, Several, Word

if TYPE_CHECKING:
    from jspec.base import PyTree
    from jspec.protocols import Drafter

DEFAULT = "token_recycling"


@dataclass(frozen=True)
class Method:
    """A way to draft.

    Args:
        name: for `--method`.
        summary: what it proposes, in a few words.
        build: gets the options that were given; for the others the drafter's own defaults hold.
        options: the keys that `--speculative-config` takes.
        offer: builds it as a member of a mixture, if more than a budget bounds its trees.
        needs_draft_model: whether it drafts with a second, smaller model.
        needs_training: whether its weights are trained for one target.
        exact: whether sampled tokens follow the target's distribution exactly.
    """

    name: str
    summary: str
    build: Build
    options: tuple[Option, ...] = ()
    offer: Build | None = None
    needs_draft_model: bool = False
    needs_training: bool = False
    exact: bool = True

    @property
    def needs_options(self) -> bool:
        """Whether it cannot be built from models alone."""
        return any(option.required for option in self.options)


_COUNT = Integer(1, 1024)
_NODES = Option("num_speculative_tokens", _COUNT, "drafted nodes of a tree made to fit")
_TEMPLATE = Option("template", Paths(), "the tree, node by node")
_SHAPE = Option(
    "shape", Word(("published", "measured")), "80 nodes: the paper's, or by measured acceptance"
)
_MATRIX = (
    Option("k", Integer(1), "candidates kept per token"),
    Option("update_on_prefill", Flag(), "learn from the prompt's logits too"),
    Option("per_row", Flag(), "a matrix for each row of the batch"),
)
_RECYCLING = (_TEMPLATE, _SHAPE, *_MATRIX)
_LOOKUP = (
    Option("max_match", Integer(1), "longest n-gram to look for"),
    Option("min_match", Integer(1), "shortest n-gram to look for"),
    Option("num_speculative_tokens", Integer(1), "tokens drafted after the match"),
    Option("whole", Flag(), "only matches with that many tokens after them"),
    Option("latest", Flag(), "the last match instead of the first"),
)
_LOOKAHEAD = (
    Option("window", _COUNT, "W, columns of the window"),
    Option("ngram", Integer(2, 64), "N, tokens of an n-gram"),
    Option("guesses", _COUNT, "G, n-grams kept and drafted for a token"),
    Option("pool_from_prompt", Flag(), "take n-grams from the prompt too"),
    Option("per_row", Flag(), "a pool for each row of the batch"),
)
_SUFFIX = (
    Option("num_speculative_tokens", _COUNT, "drafted nodes"),
    Option("max_depth", _COUNT, "most levels"),
    Option("min_match", Integer(1), "shortest match to draft from"),
    Option("max_match", _COUNT, "longest match that is told from longer ones"),
    Option("factor", Number(0, 1024), "levels for each token of the match"),
    Option("offset", Number(-1024, 1024), "levels beside those"),
    Option("threshold", Number(0, 1), "nodes of no more worth are not drafted"),
    Option("capacity", Integer(0, 1 << 24), "tokens of past outputs, all rows together"),
    Option("num_matches", _COUNT, "most places that vote"),
)
_REST_OWN = (
    Option("datastore", Place("a file of `jspec datastore build`"), "where to look", required=True),
    Option("max_match", Integer(1), "most last tokens to look for"),
    Option("min_match", Integer(1), "fewest"),
    Option("max_depth", Integer(1), "tokens read after a match"),
    Option("num_matches", Integer(1), "most matches to read"),
)
_REST = (Option("num_speculative_tokens", Integer(1), "drafted nodes"), *_REST_OWN)

_BRANCHING = Option("branching", Several(_COUNT, "[3, 1, 1]"), "children of a node, level by level")
_DEPTH = Option("max_depth", _COUNT, "most levels")
_BEAM = Option("beam", _COUNT, "nodes of a level that offer children")
_BUDGET = Option(
    "num_speculative_tokens", _COUNT, "drafted nodes in all, those with most chances; else all"
)
_GROWN = (
    Option("num_speculative_tokens", _COUNT, "drafted nodes"),
    _DEPTH,
    Option("beam", _COUNT, "nodes scored per level, and children drawn per node"),
)
_HEAD = Option("head", Place("a folder, or a bundled head's name"), "if not the bundled one")
_SHARPNESS = Option(
    "sharpness", Number(0.01, 100), "power of the head's probabilities; 1 is published"
)
_LYANNA_OWN = (
    _HEAD,
    Option("beam", _COUNT, "children of a node, and nodes of a level that get some"),
    _SHARPNESS,
    Option("resampling", Word(("fused", "separate", "never")), "how a chain is used again"),
    Option("resampled_tokens", _COUNT, "drafted nodes of the tree that is left"),
    Option("resampling_threshold", Integer(0), "only more levels make such a tree"),
)
_LYANNA = (
    Option("num_speculative_tokens", _COUNT, "drafted nodes of the fresh tree"),
    _DEPTH,
    *_LYANNA_OWN,
)
_THRESHOLD = Option("threshold", Number(0, 1), "nodes of no more worth are not drafted")
_SEQUOIA = (
    _TEMPLATE,
    _NODES,
    Option("acceptance", Several(Number(0, 1), "[0.6, 0.1]"), "chance of each child, by rank"),
    _DEPTH,
)


def _candidates(*schemes: str) -> tuple[Option, ...]:
    """For drafters that know other schemes than the coupled one."""
    known = Word((COUPLED, *schemes))
    return (
        Option("scheme", known, f"{COUPLED} is the default and keeps plain decoding's tokens"),
        Option("draft_temperature", Number(1e-6, 1e6), "the draft's own, if not the target's"),
    )


_OFFERED = 32
"""Nodes that a method of a mixture offers at least, however small the budget."""


def _merged(
    models: Models, num_speculative_tokens: int | None = None, **options: Any
) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.ensemble.merge import merge

    lookup = {name: options.pop(name) for name in list(options) if name in _names(_LOOKUP)}
    recycling, _ = builders.token_recycling(models, **options)
    other, _ = builders.prompt_lookup(models, **lookup)
    return merge(recycling, other, num_speculative_tokens=num_speculative_tokens), None


def _mixed(*names: str) -> Build:
    """Builds a mixture of methods; an option goes to all of them that know it.

    `num_speculative_tokens` is the budget. Each method offers as many nodes by itself, and at least
    enough to choose from.
    """

    def build(
        models: Models, num_speculative_tokens: int | None = None, **options: Any
    ) -> "tuple[Drafter, PyTree]":
        from jspec.drafters.ensemble.merge import merge
        from jspec.methods import device_defaults

        nodes = num_speculative_tokens or device_defaults.budget()
        drafters, weights = [], []
        for name in names:
            known = _names(METHODS[name].options)
            own = {option: value for option, value in options.items() if option in known}
            if "num_speculative_tokens" in known and METHODS[name].offer is None:
                own["num_speculative_tokens"] = max(nodes, _OFFERED)
            build = METHODS[name].offer or METHODS[name].build
            drafter, params = build(models, **own)
            drafters.append(drafter)
            weights.append(params)
        return merge(*drafters, num_speculative_tokens=nodes), tuple(weights)

    return build


def _names(options: tuple[Option, ...]) -> set[str]:
    return {option.name for option in options}


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("autoregressive", "nothing: plain decoding", builders.autoregressive),
        Method(
            "token_recycling",
            "a tree of what earlier forwards thought likely",
            builders.token_recycling,
            options=(_NODES, *_RECYCLING),
        ),
        Method(
            "dynamic_token_recycling",
            "its likeliest paths, by the probabilities that earlier forwards gave them",
            builders.token_recycling_dynamic,
            options=(_NODES, _DEPTH, _BEAM, *_MATRIX),
        ),
        Method(
            "prompt_lookup",
            "what followed the last tokens when they stood in the text before",
            builders.prompt_lookup,
            options=_LOOKUP,
        ),
        Method(
            "lookahead",
            "n-grams that the model wrote beside the text, in a window of guesses",
            builders.lookahead,
            options=_LOOKAHEAD,
        ),
        Method(
            "suffix",
            "a tree of what followed the longest endings of the text, past outputs included",
            builders.suffix,
            options=_SUFFIX,
        ),
        Method(
            "rest",
            "what most often followed the last tokens in a datastore of text",
            builders.rest,
            options=_REST,
            offer=builders.whole_rest,
        ),
        Method(
            "token_recycling+prompt_lookup",
            "both, in one tree",
            _merged,
            options=(_BUDGET, *_RECYCLING, *_LOOKUP[:2], *_LOOKUP[3:]),
        ),
        Method(
            "token_recycling+suffix",
            "both, in one tree of the nodes that have most chances",
            _mixed("dynamic_token_recycling", "suffix"),
            options=(_NODES, _BEAM, *_MATRIX, *_SUFFIX[1:]),
        ),
        Method(
            "token_recycling+suffix+rest",
            "these and a datastore, in one tree of the nodes that have most chances",
            _mixed("dynamic_token_recycling", "suffix", "rest"),
            options=(_NODES, _BEAM, *_MATRIX, *_SUFFIX[1:], *_REST_OWN),
        ),
        Method(
            "lyanna+suffix",
            "both, in one tree of the nodes that have most chances",
            _mixed("lyanna", "suffix"),
            options=(_NODES, *_LYANNA_OWN, *_SUFFIX[1:]),
            needs_training=True,
        ),
        Method(
            "speculative_decoding",
            "a chain from the draft model",
            builders.drafting("SpeculativeDecoding"),
            options=(
                Option("num_speculative_tokens", _COUNT, "tokens of the chain"),
                *_candidates("recursive", "block"),
            ),
            needs_draft_model=True,
        ),
        Method(
            "spectr",
            "independent chains",
            builders.drafting("SpecTr"),
            options=(Option("num_chains", _COUNT, "how many"), _DEPTH, *_candidates("k_seq")),
            needs_draft_model=True,
        ),
        Method(
            "specinfer",
            "a tree of independent draws",
            builders.drafting("SpecInfer"),
            options=(_BRANCHING, *_candidates("multi_round")),
            needs_draft_model=True,
        ),
        Method(
            "sequoia",
            "the tree that is best for an acceptance vector",
            builders.sequoia,
            options=(*_SEQUOIA, *_candidates("recursive")),
            needs_draft_model=True,
        ),
        Method(
            "rsd_c",
            "a tree of draws without replacement",
            builders.drafting("RSDC"),
            options=(_BRANCHING, *_candidates("recursive")),
            needs_draft_model=True,
        ),
        Method(
            "rsd_s",
            "the sequences of a stochastic beam",
            builders.drafting("RSDS"),
            options=(
                Option("beam", _COUNT, "sequences kept at each depth"),
                _DEPTH,
                *_candidates("recursive"),
            ),
            needs_draft_model=True,
        ),
        Method(
            "dyspec",
            "a tree grown by the draft's own probabilities",
            builders.drafting("DySpec"),
            options=(*_GROWN, _THRESHOLD, *_candidates("recursive")),
            needs_draft_model=True,
        ),
        Method(
            "calibrated_dyspec",
            "a tree grown by learnt acceptance rates",
            builders.drafting("CalibratedDySpec"),
            options=(*_GROWN, _THRESHOLD, *_candidates("recursive")),
            needs_draft_model=True,
        ),
        Method(
            "coupled_tree",
            "a tree grown by the noise that the target will draw with",
            builders.drafting("CoupledTree"),
            options=_GROWN,
            needs_draft_model=True,
        ),
        Method(
            "eagle",
            "a fixed tree from the target's states and a trained head (EAGLE-1)",
            builders.headed(builders.eagle, "eagle", "eagle3"),
            options=(_HEAD, _TEMPLATE, _NODES),
            needs_training=True,
        ),
        Method(
            "eagle2",
            "a tree that the head's confidence shapes (EAGLE-2)",
            builders.headed(builders.eagle2, "eagle", "eagle3"),
            options=(_HEAD, *_GROWN, _SHARPNESS),
            needs_training=True,
        ),
        Method(
            "medusa",
            "a tree of the tokens that heads on one state think likely, each a place further on",
            builders.headed(builders.medusa, "medusa"),
            options=(_HEAD, _TEMPLATE, _NODES),
            needs_training=True,
        ),
        Method(
            "lyanna",
            "states first, tokens afterwards, and what was rejected drafts again",
            builders.headed(builders.lyanna, "lyanna"),
            options=_LYANNA,
            offer=builders.headed(builders.whole_lyanna, "lyanna"),
            needs_training=True,
        ),
    )
}
