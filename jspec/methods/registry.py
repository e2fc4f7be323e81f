"""The methods by name. One entry here is all that a new one needs.

`jspec.methods.build`, `--method`, `--speculative-config` and `jspec methods` all derive from
`METHODS`. A range is what a value may be before a model is loaded; a drafter refuses what does not
fit the model or the other options, and tests hold the two together. Nothing here imports JAX, so
that a typing error is answered at once.
"""

from collections.abc import Mapping
from dataclasses import replace

from jspec.methods import builders
from jspec.methods.builders import COUPLED, drafting, headed, public
from jspec.methods.merges import competing, joined_by, united
from jspec.methods.method import Method
from jspec.methods.options import Flag, Integer, Number, Option, Paths, Place, Several, Word

DEFAULT = "auto"
"""The method of the command line if none is named."""

# Options that several methods have.

_COUNT = Integer(1, 1024)
_ANY = Integer(1)
_BUDGET = Option("num_speculative_tokens", _COUNT, "drafted nodes")
_FITTED = Option("num_speculative_tokens", _COUNT, "drafted nodes of a tree made to fit")
_TEMPLATE = Option("template", Paths(), "the tree, node by node")
_DEPTH = Option("max_depth", _COUNT, "most levels")
_BEAM = Option("beam", _COUNT, "nodes of a level that offer children")
_GROWN = (
    _BUDGET,
    _DEPTH,
    Option("beam", _COUNT, "nodes scored per level, and children drawn per node"),
)
_BRANCHING = Option("branching", Several(_COUNT, "[3, 1, 1]"), "children of a node, level by level")
_THRESHOLD = Option(
    "threshold", Number(0, 1, below_high=True), "nodes of no larger value are not drafted"
)
_MATRIX = (
    Option("k", _ANY, "candidates kept per token"),
    Option("update_on_prefill", Flag(), "learn from the prompt's logits too"),
    Option("per_row", Flag(), "a matrix for each row of the batch"),
)
_NGRAMS = Option(
    "ngrams",
    Place("a file of `jspec train ngrams`"),
    "what the target's distributions are after two tokens",
)
_HEAD = Option("head", Place("a folder, or a bundled head's name"), "if not the bundled one")
_SHARPNESS = Option(
    "sharpness", Number(0.01, 100), "power of the head's probabilities; 1 is published"
)


def _candidates(*schemes: str) -> tuple[Option, ...]:
    """The options of drafters that know other schemes than the coupled one."""
    known = Word((COUPLED, *schemes))
    return (
        Option("scheme", known, f"{COUPLED} is the default and keeps plain decoding's tokens"),
        Option("draft_temperature", Number(1e-6, 1e6), "the draft's own, if not the target's"),
    )


def _together(*members: Method) -> tuple[Option, ...]:
    """The options of all members, each name once, without their budgets."""
    options = {option.name: option for member in reversed(members) for option in member.options}
    return tuple(option for name, option in options.items() if name != _BUDGET.name)


def _merge(*members: Method, name: str) -> Method:
    """The method in which the members' likeliest nodes make one tree."""
    return Method(
        name,
        f"{'both' if len(members) == 2 else 'all'}, in one tree of the nodes that are likeliest",
        competing(*members),
        options=(_BUDGET, *_together(*members)),
        needs_training=any(member.needs_training for member in members),
    )


_WIDTHS = Option(
    "widths",
    Several(Integer(0, 1024), "[0, 3, 7, 15]"),
    "drafted nodes that a round may verify; each round as many as pay",
)
_TOKEN_BUDGET = Option(
    "token_budget",
    Number(0, 1),
    "tokens that a round verifies, as a fraction of all rows at its width; the likeliest first",
)


def _with_widths(method: Method) -> Method:
    """The method, with the option to choose the width of every round."""
    options = (*method.options, _WIDTHS, _TOKEN_BUDGET)
    return replace(method, make=builders.widened(method.make), options=options)


# Methods that merges are made of.

_TOKEN_RECYCLING = Method(
    "token_recycling",
    "a tree of what earlier forward passes thought likely",
    builders.token_recycling,
    options=(
        _FITTED,
        _TEMPLATE,
        Option(
            "shape",
            Word(("published", "measured")),
            "80 nodes: the paper's, or by measured acceptance",
        ),
        *_MATRIX,
    ),
)
_DYNAMIC = Method(
    "dynamic_token_recycling",
    "its likeliest paths, by the probabilities that earlier forward passes gave them",
    builders.dynamic_token_recycling,
    options=(_FITTED, _DEPTH, _BEAM, *_MATRIX, _NGRAMS),
)
_PROMPT_LOOKUP = Method(
    "prompt_lookup",
    "what followed the last tokens when they stood in the text before",
    public("PromptLookup"),
    options=(
        Option("num_speculative_tokens", _ANY, "tokens drafted after the match"),
        Option("max_match", _ANY, "longest n-gram to look for"),
        Option("min_match", _ANY, "shortest n-gram to look for"),
        Option("whole", Flag(), "only matches with that many tokens after them"),
        Option("latest", Flag(), "the last match instead of the first"),
    ),
)
_SUFFIX = Method(
    "suffix",
    "a tree of what followed the longest endings of the text, past outputs included",
    public("Suffix"),
    options=(
        _BUDGET,
        _DEPTH,
        Option("min_match", _ANY, "shortest match to draft from"),
        Option("max_match", _COUNT, "longest match that is told from longer ones"),
        Option("factor", Number(0, 1024), "levels for each token of the match"),
        Option("offset", Number(-1024, 1024), "levels beside those"),
        _THRESHOLD,
        Option("capacity", Integer(0, 1 << 24), "tokens of past outputs, all rows together"),
        Option("num_matches", _COUNT, "most places that vote"),
    ),
)
_REST = Method(
    "rest",
    "what most often followed the last tokens in a datastore of text",
    builders.rest,
    options=(
        _BUDGET,
        Option(
            "datastore", Place("a file of `jspec datastore build`"), "where to look", required=True
        ),
        Option("max_match", _ANY, "most last tokens to look for"),
        Option("min_match", _ANY, "fewest"),
        Option("max_depth", _ANY, "tokens read after a match"),
        Option("num_matches", _ANY, "most matches to read"),
    ),
    member=builders.rest_member,
)
_LYANNA = Method(
    "lyanna",
    "states first, tokens afterwards, and what was rejected drafts again",
    headed(builders.lyanna, "lyanna"),
    options=(
        Option("num_speculative_tokens", _COUNT, "drafted nodes of the fresh tree"),
        _HEAD,
        _DEPTH,
        Option("beam", _COUNT, "children of a node, and nodes of a level that get some"),
        _SHARPNESS,
        Option(
            "resampling",
            Word(("fused", "merged", "separate", "never")),
            "how a chain is used again",
        ),
        Option("resampled_tokens", _COUNT, "drafted nodes of the tree that is left"),
        Option("resampling_threshold", Integer(0), "only more levels make such a tree"),
    ),
    member=headed(builders.lyanna_member, "lyanna"),
    needs_training=True,
)

_COUPLED_TREE = Method(
    "coupled_tree",
    "a tree grown by the noise that the target will draw with",
    drafting("CoupledTree"),
    options=_GROWN,
    needs_draft_model=True,
)
_EAGLE2 = Method(
    "eagle2",
    "a tree that the head's confidence shapes (EAGLE-2)",
    headed(builders.eagle2, "eagle", "eagle3"),
    options=(_HEAD, *_GROWN, _SHARPNESS),
    needs_training=True,
)
_MEDUSA = Method(
    "medusa",
    "a tree of the tokens that heads on one state think likely, each a place further on",
    headed(builders.medusa, "medusa"),
    options=(_HEAD, _TEMPLATE, _FITTED),
    needs_training=True,
)
_BLOCK = Method(
    "block",
    "a tree from a whole block of probabilities that a head gives at once, ranked by the noise",
    headed(builders.block, "block"),
    options=(
        _HEAD,
        _BUDGET,
        _DEPTH,
        Option("beam", _COUNT, "nodes of a level that get children, and the most of each"),
        Option("num_candidates", _ANY, "tokens of a level among which children are chosen"),
    ),
    needs_training=True,
)

_RECOMMENDED = _merge(_DYNAMIC, _SUFFIX, name="auto")
_BY_HEAD = {
    "block": _BLOCK,
    "eagle": _EAGLE2,
    "eagle3": _EAGLE2,
    "lyanna": _LYANNA,
    "medusa": _MEDUSA,
}

# Every method, in the order in which they are listed.

_FIXED = (
    _TOKEN_RECYCLING,
    _DYNAMIC,
    _PROMPT_LOOKUP,
    Method(
        "lookahead",
        "n-grams that the model wrote beside the text, in a window of guesses",
        builders.lookahead,
        options=(
            Option("window", _COUNT, "W, columns of the window"),
            Option("ngram", Integer(2, 64), "N, tokens of an n-gram"),
            Option("guesses", _COUNT, "G, n-grams kept and drafted for a token"),
            Option("pool_from_prompt", Flag(), "take n-grams from the prompt too"),
            Option("per_row", Flag(), "a pool for each row of the batch"),
        ),
    ),
    _SUFFIX,
    _REST,
    Method(
        "token_recycling+prompt_lookup",
        "both, in one tree",
        united(_TOKEN_RECYCLING, _PROMPT_LOOKUP),
        options=(
            Option("num_speculative_tokens", _COUNT, "drafted nodes, the likeliest; else all"),
            *_together(_TOKEN_RECYCLING, _PROMPT_LOOKUP),
        ),
    ),
    _merge(_DYNAMIC, _SUFFIX, name="token_recycling+suffix"),
    _merge(_DYNAMIC, _SUFFIX, _REST, name="token_recycling+suffix+rest"),
    _merge(_LYANNA, _SUFFIX, name="lyanna+suffix"),
    _merge(_BLOCK, _SUFFIX, name="block+suffix"),
    _merge(_EAGLE2, _DYNAMIC, name="eagle2+token_recycling"),
    Method(
        "speculative_decoding",
        "a chain from the draft model",
        drafting("SpeculativeDecoding"),
        options=(
            Option("num_speculative_tokens", _COUNT, "tokens of the chain"),
            *_candidates("recursive", "block"),
        ),
        needs_draft_model=True,
    ),
    Method(
        "spectr",
        "independent chains",
        drafting("SpecTr"),
        options=(Option("num_chains", _COUNT, "how many"), _DEPTH, *_candidates("k_seq")),
        needs_draft_model=True,
    ),
    Method(
        "specinfer",
        "a tree of independent draws",
        drafting("SpecInfer"),
        options=(_BRANCHING, *_candidates("multi_round")),
        needs_draft_model=True,
    ),
    Method(
        "sequoia",
        "the tree that is best for an acceptance vector",
        builders.sequoia,
        options=(
            _TEMPLATE,
            _FITTED,
            Option(
                "acceptance",
                Several(Number(0, 1), "[0.6, 0.1]"),
                "probability of a child, by rank",
            ),
            _DEPTH,
            *_candidates("recursive", "traversal"),
        ),
        needs_draft_model=True,
    ),
    Method(
        "rsd_c",
        "a tree of draws without replacement",
        drafting("RSDC"),
        options=(_BRANCHING, *_candidates("recursive", "traversal")),
        needs_draft_model=True,
    ),
    Method(
        "rsd_s",
        "the sequences of a stochastic beam",
        drafting("RSDS"),
        options=(
            Option("beam", _COUNT, "sequences kept at each depth"),
            _DEPTH,
            *_candidates("recursive", "traversal"),
        ),
        needs_draft_model=True,
    ),
    Method(
        "dyspec",
        "a tree grown by the draft's own probabilities",
        drafting("DySpec"),
        options=(*_GROWN, _THRESHOLD, *_candidates("recursive", "traversal")),
        needs_draft_model=True,
    ),
    Method(
        "calibrated_dyspec",
        "a tree grown by learnt acceptance rates",
        drafting("CalibratedDySpec"),
        options=(*_GROWN, _THRESHOLD, *_candidates("recursive", "traversal")),
        needs_draft_model=True,
    ),
    _COUPLED_TREE,
    Method(
        "eagle",
        "a fixed tree from the target's states and a trained head (EAGLE-1)",
        headed(builders.eagle, "eagle", "eagle3"),
        options=(_HEAD, _TEMPLATE, _FITTED),
        needs_training=True,
    ),
    _EAGLE2,
    _MEDUSA,
    _LYANNA,
    _BLOCK,
)

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method(
            "auto",
            "what is recommended: dynamic_token_recycling with the model's n-grams, suffix, a head "
            "or draft model if given; every round as wide as pays",
            builders.recommended(
                joined_by(
                    replace(_DYNAMIC, make=builders.with_bundled_ngrams(_DYNAMIC.make)),
                    _SUFFIX,
                    draft_model=_COUPLED_TREE,
                    heads=_BY_HEAD,
                )
            ),
            options=(
                _WIDTHS,
                _TOKEN_BUDGET,
                replace(_HEAD, help="drafts beside the others"),
                *_RECOMMENDED.options,
            ),
            takes_draft_model=True,
        ),
        Method(
            "autoregressive",
            "nothing: plain decoding",
            public("Autoregressive"),
            drafts=False,
        ),
        *map(_with_widths, _FIXED),
    )
}
