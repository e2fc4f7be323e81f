"""Builds the methods' drafters from models and from options that were checked.

A builder gets the drafter's class, the models, and the options that were given. For the others the
drafter's own defaults hold, or what `jspec.methods.device_defaults` finds to fit the device. What
it takes beside the fields of the class is annotated with its kind, as those fields are. JAX is
imported when a builder is called, and not before.
"""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, TOKEN, Integer, Number, Paths, Place, Several, Word
from jspec.methods.method import Built, Maker, Models

if TYPE_CHECKING:
    from jspec.protocols import CausalLM
    from jspec.tree import Template

COUPLED = "coupled"
"""The scheme whose tokens are those of plain decoding; the only one without a draft model."""

Build = Callable[..., Built]
"""The function `build(drafter, models, **options)` of a drafter's class and checked options."""
_Paths = tuple[tuple[int, ...], ...]
"""The paths of a `jspec.Template`."""
_Tree = Annotated[_Paths | None, Paths(), "the tree, node by node"]
_Fitted = Annotated[int | None, COUNT, "drafted nodes of a tree made to fit"]
_Temperature = Annotated[float | None, Number(1e-6, 10**6), "the draft's own, if not the target's"]
_KEEPS = f"{COUPLED} is the default and keeps plain decoding's tokens"
_HEAD = Place("a folder, or a bundled head's name")
_Head = Annotated[str | None, _HEAD, "if not the target's own or the bundled one"]


# Without weights.


def alone(drafter: Any, models: Models, **options: Any) -> Built:
    """Builds a drafter that is made of its options alone."""
    return Built(models.target.model, drafter(**options), None)


def token_recycling(
    drafter: Any,
    models: Models,
    num_speculative_tokens: _Fitted = None,
    template: _Tree = None,
    shape: Annotated[
        str | None,
        Word(("published", "measured")),
        "80 nodes: the paper's, or by measured acceptance",
    ] = None,
    **options: Any,
) -> Built:
    from jspec.drafters.retrieval.token_recycling import MEASURED, PUBLISHED
    from jspec.methods import device_defaults

    model = models.target.model
    options = _candidates(drafter, model) | options
    if shape is not None:
        _check_alone(f"shape {shape}", num_speculative_tokens=num_speculative_tokens)
        _check_alone(f"shape {shape}", template=template)
        tree = {"published": PUBLISHED, "measured": MEASURED}[shape]
    else:
        tree = _given(template, num_speculative_tokens=num_speculative_tokens)
        tree = tree or device_defaults.token_recycling(num_speculative_tokens, options.get("k"))
    return Built(model, drafter(model.vocab_size, template=tree, **options), None)


def _candidates(drafter: Any, model: "CausalLM") -> dict[str, int]:
    """The candidates of a matrix line where there are fewer tokens than it usually holds."""
    return {"k": model.vocab_size} if model.vocab_size < drafter.k else {}


def dynamic_token_recycling(
    drafter: Any,
    models: Models,
    num_speculative_tokens: _Fitted = None,
    ngrams: Annotated[
        str | None,
        Place("a file of `jspec train head --kind ngrams`"),
        "what the target's distributions are after two tokens",
    ] = None,
    **options: Any,
) -> Built:
    from jspec.methods import device_defaults, ngram_tables

    nodes = num_speculative_tokens or device_defaults.budget()
    model = models.target.model
    table = None if ngrams is None else ngram_tables.load(ngrams, models.target)
    usual = device_defaults.dynamic_token_recycling(nodes) | _candidates(drafter, model)
    return Built(model, drafter(model.vocab_size, nodes, **(usual | options)), table)


def lookahead(drafter: Any, models: Models, **options: Any) -> Built:
    from jspec.methods import device_defaults

    if not options.keys() & {"window", "ngram", "guesses"}:
        options = device_defaults.lookahead() | options
    model = models.target.model
    return Built(model, drafter(model.vocab_size, **options), None)


def rest(
    drafter: Any,
    models: Models,
    datastore: Annotated[str, Place("a file of `jspec datastore build`"), "where to look"],
    num_speculative_tokens: int | None = None,
    **options: Any,
) -> Built:
    from jspec.drafters.retrieval import datastore as datastores
    from jspec.methods import device_defaults

    nodes = num_speculative_tokens or _most_read(drafter, device_defaults.budget(64), **options)
    store = datastores.load(datastore, models.target.tokenizer.get_vocab())
    made = drafter(num_speculative_tokens=nodes, **options)
    return Built(models.target.model, made, store)


def rest_member(drafter: Any, models: Models, **options: Any) -> Built:
    """REST with the published number of nodes, for a merge with a budget to choose from."""
    nodes = _most_read(drafter, 64, **options)
    return rest(drafter, models, num_speculative_tokens=nodes, **options)


def _most_read(drafter: Any, nodes: int, **options: Any) -> int:
    """The wanted number of nodes, or all that REST reads with these options if fewer."""
    read = (options.get(name, getattr(drafter, name)) for name in ("num_matches", "max_depth"))
    return max(min(nodes, prod(read)), 1)


# With a draft model.


def coupled(drafter: Any, models: Models, **options: Any) -> Built:
    """Builds a drafter that has a draft model and the coupled scheme."""
    assert models.draft is not None, "`Method.build` has found one or refused"
    made = drafter(models.draft.model, **options)
    return Built(models.target.model, made, models.draft.params)


def drafting(*schemes: str) -> Build:
    """The builder of a drafter that has a draft model, and other schemes than the coupled one.

    Args:
        schemes: the names of these in `jspec.schemes`, in lower case.
    """

    def build(
        drafter: Any,
        models: Models,
        scheme: Annotated[str, Word((COUPLED, *schemes)), _KEEPS] = COUPLED,
        draft_temperature: _Temperature = None,
        **options: Any,
    ) -> Built:
        import jspec

        own = None if draft_temperature is None else jspec.Sampling(draft_temperature)
        verified = getattr(jspec.schemes, scheme.upper())
        return coupled(drafter, models, **options, scheme=verified, sampling=own)

    return build


WITHOUT_REPLACEMENT = drafting("recursive", "traversal")
"""The builder of a drafter whose children are drawn without replacement."""


def sequoia(
    drafter: Any,
    models: Models,
    template: _Tree = None,
    num_speculative_tokens: _Fitted = None,
    acceptance: Annotated[
        tuple[float, ...] | None,
        Several(Number(0, 1), "[0.6, 0.1]"),
        "probability of a child, by rank",
    ] = None,
    max_depth: Annotated[int | None, COUNT, "most levels"] = None,
    scheme: Annotated[str, Word((COUPLED, "recursive", "traversal")), _KEEPS] = COUPLED,
    draft_temperature: _Temperature = None,
) -> Built:
    from jspec.methods import device_defaults

    tree = _given(
        template,
        num_speculative_tokens=num_speculative_tokens,
        acceptance=acceptance,
        max_depth=max_depth,
    )
    tree = tree or device_defaults.sequoia(num_speculative_tokens, acceptance, max_depth)
    return WITHOUT_REPLACEMENT(drafter, models, scheme, draft_temperature, template=tree)


def pard(
    drafter: Any,
    models: Models,
    template: _Tree = None,
    num_speculative_tokens: _Fitted = None,
    mask_token_id: Annotated[
        int | None, TOKEN, "the mask, if not `pard_token` of the draft model's config.json"
    ] = None,
    scheme: Annotated[str, Word((COUPLED, "recursive", "traversal")), _KEEPS] = COUPLED,
    draft_temperature: _Temperature = None,
) -> Built:
    from jspec.tree import chain

    assert models.draft is not None, "`Method.build` has found one or refused"
    mask = models.draft.mask_token if mask_token_id is None else mask_token_id
    if mask is None:
        raise InputError(
            "method pard needs a mask token and the draft model's config.json has no pard_token; "
            "name a draft model that was trained as PARD, or pass mask_token_id"
        )
    options: dict[str, Any] = {"mask_token_id": mask}
    if tree := _given(template, num_speculative_tokens=num_speculative_tokens):
        options["template"] = tree
    elif num_speculative_tokens is not None:
        options["template"] = chain(num_speculative_tokens)
    return WITHOUT_REPLACEMENT(drafter, models, scheme, draft_temperature, **options)


# With a trained head.

_OF_PAIRS = ("eagle", "eagle3", "mtp")
"""The kinds of heads that EAGLE's drafters take."""


def eagle(
    drafter: Any,
    models: Models,
    head: _Head = None,
    template: _Tree = None,
    num_speculative_tokens: _Fitted = None,
    scheme: Annotated[str, Word((COUPLED, "recursive", "traversal")), _KEEPS] = COUPLED,
) -> Built:
    import jspec
    from jspec.methods import device_defaults

    def make(head: Any) -> Any:
        tree = _given(template, num_speculative_tokens=num_speculative_tokens)
        tree = tree or device_defaults.eagle(num_speculative_tokens)
        return drafter(head, tree, scheme=getattr(jspec.schemes, scheme.upper()))

    return _headed(models, head, make, *_OF_PAIRS)


def eagle2(
    drafter: Any,
    models: Models,
    head: _Head = None,
    num_speculative_tokens: int | None = None,
    max_depth: int | None = None,
    beam: int | None = None,
    **options: Any,
) -> Built:
    from jspec.methods import device_defaults

    shape = device_defaults.eagle2(num_speculative_tokens, max_depth, beam)
    options = {"sharpness": device_defaults.SHARPNESS} | options
    return _headed(models, head, lambda head: drafter(head, *shape, **options), *_OF_PAIRS)


def block(
    drafter: Any,
    models: Models,
    head: _Head = None,
    num_speculative_tokens: int | None = None,
    max_depth: int | None = None,
    beam: int | None = None,
    num_candidates: int = 32,
) -> Built:
    from jspec.methods import device_defaults

    def make(head: Any) -> Any:
        depth = head.num_slots if max_depth is None else max_depth
        size = device_defaults.block(num_speculative_tokens, depth, beam, num_candidates)
        return drafter(head, size[0], max_depth, size[1], num_candidates)

    return _headed(models, head, make, "block")


def medusa(
    drafter: Any,
    models: Models,
    head: _Head = None,
    template: _Tree = None,
    num_speculative_tokens: _Fitted = None,
) -> Built:
    from jspec.methods import device_defaults

    def make(head: Any) -> Any:
        tree = _given(template, num_speculative_tokens=num_speculative_tokens)
        return drafter(head, tree or device_defaults.medusa(num_speculative_tokens, head.num_heads))

    return _headed(models, head, make, "medusa")


def lyanna(
    drafter: Any,
    models: Models,
    head: _Head = None,
    num_speculative_tokens: int | None = None,
    resampling: Annotated[
        str, Word(("fused", "merged", "separate", "never")), "how a chain is used again"
    ] = "fused",
    resampled_tokens: Annotated[int | None, COUNT, "drafted nodes of the tree that is left"] = None,
    resampling_threshold: Annotated[int, Integer(0), "only more levels make such a tree"] = 0,
    sharpness: float | None = None,
    **shape: int,
) -> Built:
    from jspec.drafters.draft_head import lyanna_resampling
    from jspec.methods import device_defaults

    nodes, second = device_defaults.lyanna(num_speculative_tokens, resampled_tokens, **shape)
    way = {
        "fused": lyanna_resampling.Fused,
        "merged": lyanna_resampling.Merged,
        "separate": lyanna_resampling.Separate,
        "never": lambda *_: None,
    }[resampling]
    again = way(second, resampling_threshold)
    sharp = sharpness or device_defaults.SHARPNESS

    def make(head: Any) -> Any:
        return drafter(head, nodes, **shape, resampling=again, sharpness=sharp)

    return _headed(models, head, make, "lyanna")


def lyanna_member(drafter: Any, models: Models, **options: Any) -> Built:
    """Lyanna with the whole tree of the chain, for a merge with a budget to choose from."""
    from jspec.methods import device_defaults

    shape = {name: options[name] for name in ("max_depth", "beam") if name in options}
    nodes = device_defaults.whole_chain(**shape)
    return lyanna(drafter, models, num_speculative_tokens=nodes, **options)


def _headed(
    models: Models, name: str | None, make: Callable[[Any], Any], kind: str, *others: str
) -> Built:
    """A drafter that has a trained head: the named one, the target's own, or the bundled one.

    Args:
        models: of which the target is read.
        name: of the head, if given.
        make: makes the drafter of the head.
        kind: of the bundled head, see `jspec.models.heads`.
        others: kinds that serve as well, such as that of a head that came with the weights.
    """
    from jspec.models import heads

    found = name or (heads.own(models.target) if others else None)
    found = found or heads.find(kind, models.target)
    loaded = heads.load(found, models.target, only=(kind, *others))
    return Built(loaded.target.model, make(loaded.head), loaded.params)


def _given(template: _Paths | None, **others: Any) -> "Template | None":
    """The tree that was given node by node, or None; no other option may then make a tree."""
    from jspec.tree import Template

    if template is None:
        return None
    _check_alone("template", **others)
    return Template(template)


def _check_alone(tree: str, **others: Any) -> None:
    """Raises InputError if beside a whole tree something was given that makes one."""
    for name, value in others.items():
        if value is not None:
            raise InputError(
                f"{tree} and {name} were both given; {tree} is the whole tree, so leave one of "
                "them out"
            )


# With widths that are chosen.


def widened(
    make: Maker,
    models: Models,
    widths: Annotated[
        tuple[int, ...] | None,
        Several(Integer(0, COUNT.high), "[0, 3, 7, 15]"),
        "drafted nodes that a round may verify; each round as many as pay",
    ] = None,
    token_budget: Annotated[
        float | None,
        Number(0, 1),
        "tokens that a round verifies, as a fraction of all rows at its width; the likeliest first",
    ] = None,
    **options: Any,
) -> Built:
    """Builds the drafter of a method whose rounds are as wide as pays, if widths are given."""
    if widths is None:
        if token_budget is not None:
            raise InputError(
                f"token_budget is {token_budget:g} and came without widths, of whose tokens it "
                "is a fraction; give widths such as [0, 3, 7], or leave it out"
            )
        return make(models, **options)
    from jspec.costs.prior import prior
    from jspec.drafters.adaptive import AdaptiveParams, adaptive

    built = make(models, **options)
    costs = prior(models.target.params)
    params = AdaptiveParams(built.drafter_params, costs)
    drafter = adaptive(built.drafter, widths, 1.0 if token_budget is None else token_budget)
    return Built(built.model, drafter, params)


def recommended(
    make: Maker,
    models: Models,
    widths: tuple[int, ...] | None = None,
    num_speculative_tokens: int | None = None,
    head: Annotated[str | None, _HEAD, "drafts beside the others"] = None,
    ngrams: str | None = None,
    **options: Any,
) -> Built:
    """Builds `auto`: widths that fit the device, as many nodes as the largest, and the bundled
    table of these weights and the head that comes with them, if none is named.
    """
    from jspec.methods import device_defaults, ngram_tables
    from jspec.models import heads

    if widths is None:
        widths = device_defaults.widths(num_speculative_tokens)
    nodes = num_speculative_tokens or max(widths[-1], 1)
    options["ngrams"] = ngrams or ngram_tables.find(models.target)
    head = head or heads.own(models.target)
    return widened(make, models, widths, num_speculative_tokens=nodes, head=head, **options)
