"""The builders of the methods' drafters, from models and from options that were checked.

Each builder gets the options that were given. For the others the drafter's own defaults hold, or
what `jspec.methods.device_defaults` finds to fit the device. JAX is imported when a builder is
called, and not before.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from jspec._validate.errors import InputError
from jspec.methods.method import Built, Maker, Models

if TYPE_CHECKING:
    from jspec.protocols import CausalLM, Drafter
    from jspec.tree import Template

COUPLED = "coupled"
"""The scheme whose tokens are those of plain decoding; the only one without a draft model."""

Paths = tuple[tuple[int, ...], ...]
"""The paths of a `jspec.Template`."""


# Without weights.


def public(drafter: str) -> Maker:
    """The builder of a drafter that is made of its options alone.

    Args:
        drafter: its public name in `jspec`.
    """

    def make(models: Models, **options: Any) -> Built:
        import jspec

        return Built(models.target.model, getattr(jspec, drafter)(**options), None)

    return make


def token_recycling(
    models: Models,
    num_speculative_tokens: int | None = None,
    template: Paths | None = None,
    shape: str | None = None,
    **options: Any,
) -> Built:
    from jspec.drafters.retrieval.token_recycling import MEASURED, PUBLISHED, TokenRecycling
    from jspec.methods import device_defaults

    model = models.target.model
    options = _candidates(model) | options
    if shape is not None:
        _check_alone(f"shape {shape}", num_speculative_tokens=num_speculative_tokens)
        _check_alone(f"shape {shape}", template=template)
        tree = {"published": PUBLISHED, "measured": MEASURED}[shape]
    else:
        tree = _given(template, num_speculative_tokens=num_speculative_tokens)
        tree = tree or device_defaults.token_recycling(num_speculative_tokens, options.get("k"))
    return Built(model, TokenRecycling(model.vocab_size, template=tree, **options), None)


def _candidates(model: "CausalLM") -> dict[str, int]:
    """The candidates of a matrix line where there are fewer tokens than it usually holds."""
    from jspec.drafters.retrieval.token_recycling import TokenRecycling

    return {"k": model.vocab_size} if model.vocab_size < TokenRecycling.k else {}


def dynamic_token_recycling(
    models: Models,
    num_speculative_tokens: int | None = None,
    ngrams: str | None = None,
    **options: Any,
) -> Built:
    from jspec.drafters.retrieval.dynamic_token_recycling import DynamicTokenRecycling
    from jspec.methods import device_defaults, ngram_tables

    nodes = num_speculative_tokens or device_defaults.budget()
    model = models.target.model
    table = None if ngrams is None else ngram_tables.load(ngrams, models.target)
    options = {**device_defaults.dynamic_token_recycling(nodes), **_candidates(model), **options}
    return Built(model, DynamicTokenRecycling(model.vocab_size, nodes, **options), table)


def with_bundled_ngrams(make: Maker) -> Maker:
    """The builder of a drafter that gets the bundled table of these weights, if none is named."""

    def made(models: Models, ngrams: str | None = None, **options: Any) -> Built:
        from jspec.methods import ngram_tables

        return make(models, ngrams=ngrams or ngram_tables.find(models.target), **options)

    return made


def lookahead(models: Models, **options: Any) -> Built:
    from jspec.drafters.retrieval.lookahead import Lookahead
    from jspec.methods import device_defaults

    if not options.keys() & {"window", "ngram", "guesses"}:
        options = device_defaults.lookahead() | options
    model = models.target.model
    return Built(model, Lookahead(model.vocab_size, **options), None)


def rest(
    models: Models, datastore: str, num_speculative_tokens: int | None = None, **options: Any
) -> Built:
    from jspec.drafters.retrieval import datastore as datastores
    from jspec.drafters.retrieval.rest import REST
    from jspec.methods import device_defaults

    nodes = num_speculative_tokens or _most_read(device_defaults.budget(64), options)
    drafter = REST(num_speculative_tokens=nodes, **options)
    store = datastores.load(datastore, models.target.tokenizer.get_vocab())
    return Built(models.target.model, drafter, store)


def rest_member(models: Models, **options: Any) -> Built:
    """REST with the published number of nodes, for a merge with a budget to choose from."""
    return rest(models, num_speculative_tokens=_most_read(64, options), **options)


def _most_read(nodes: int, options: Mapping[str, Any]) -> int:
    """The wanted number of nodes, or all that REST reads with these options if fewer."""
    from jspec.drafters.retrieval.rest import REST

    read = (options.get(name, getattr(REST, name)) for name in ("num_matches", "max_depth"))
    return max(min(nodes, prod(read)), 1)


# With a draft model.


def drafting(drafter: str) -> Maker:
    """The builder of a drafter that has a draft model.

    Args:
        drafter: its public name in `jspec`.
    """

    def make(
        models: Models,
        scheme: str = COUPLED,
        draft_temperature: float | None = None,
        **options: Any,
    ) -> Built:
        import jspec
        from jspec.verify import schemes

        assert models.draft is not None, "`Method.build` has found one or refused"
        made = getattr(jspec, drafter)(
            models.draft.model,
            **options,
            scheme=getattr(schemes, scheme.upper()),
            sampling=None if draft_temperature is None else jspec.Sampling(draft_temperature),
        )
        return Built(models.target.model, made, models.draft.params)

    return make


def sequoia(
    models: Models,
    template: Paths | None = None,
    num_speculative_tokens: int | None = None,
    acceptance: tuple[float, ...] | None = None,
    max_depth: int | None = None,
    **options: Any,
) -> Built:
    from jspec.methods import device_defaults

    tree = _given(
        template,
        num_speculative_tokens=num_speculative_tokens,
        acceptance=acceptance,
        max_depth=max_depth,
    )
    tree = tree or device_defaults.sequoia(num_speculative_tokens, acceptance, max_depth)
    return drafting("Sequoia")(models, template=tree, **options)


# With a trained head.


def headed(make_drafter: Callable[..., "Drafter"], kind: str, *others: str) -> Maker:
    """The builder of a drafter that has a trained head.

    Args:
        make_drafter: makes it of the head and of the options.
        kind: of the bundled head, see `jspec.models.heads`.
        others: kinds that serve as well.
    """

    def make(models: Models, head: str | None = None, **options: Any) -> Built:
        from jspec.models import heads

        name = head or heads.find(kind, models.target)
        loaded = heads.load(name, models.target, only=(kind, *others))
        return Built(loaded.target.model, make_drafter(loaded.head, **options), loaded.params)

    return make


def eagle(
    head: Any, template: Paths | None = None, num_speculative_tokens: int | None = None
) -> "Drafter":
    from jspec.drafters.draft_head.eagle import EAGLE
    from jspec.methods import device_defaults

    tree = _given(template, num_speculative_tokens=num_speculative_tokens)
    return EAGLE(head, tree or device_defaults.eagle(num_speculative_tokens))


def eagle2(
    head: Any,
    num_speculative_tokens: int | None = None,
    max_depth: int | None = None,
    beam: int | None = None,
    sharpness: float | None = None,
) -> "Drafter":
    from jspec.drafters.draft_head.eagle import EAGLE2
    from jspec.methods import device_defaults

    shape = device_defaults.eagle2(num_speculative_tokens, max_depth, beam)
    return EAGLE2(head, *shape, sharpness=sharpness or device_defaults.SHARPNESS)


def block(
    head: Any,
    num_speculative_tokens: int | None = None,
    max_depth: int | None = None,
    beam: int | None = None,
    num_candidates: int = 32,
) -> "Drafter":
    from jspec.drafters.draft_head.block import BlockDrafter
    from jspec.methods import device_defaults

    depth = head.num_slots if max_depth is None else max_depth
    nodes, beam = device_defaults.block(num_speculative_tokens, depth, beam, num_candidates)
    return BlockDrafter(head, nodes, max_depth, beam, num_candidates)


def medusa(
    head: Any, template: Paths | None = None, num_speculative_tokens: int | None = None
) -> "Drafter":
    from jspec.drafters.draft_head.medusa import Medusa
    from jspec.methods import device_defaults

    tree = _given(template, num_speculative_tokens=num_speculative_tokens)
    return Medusa(head, tree or device_defaults.medusa(num_speculative_tokens, head.num_heads))


def lyanna(
    head: Any,
    num_speculative_tokens: int | None = None,
    resampling: str = "fused",
    resampled_tokens: int | None = None,
    resampling_threshold: int = 0,
    sharpness: float | None = None,
    **shape: int,
) -> "Drafter":
    from jspec.drafters.draft_head.lyanna import Lyanna
    from jspec.drafters.draft_head.lyanna_resampling import Fused, Merged, Separate
    from jspec.methods import device_defaults

    nodes, second = device_defaults.lyanna(num_speculative_tokens, resampled_tokens, **shape)
    again = {
        "fused": Fused(second, resampling_threshold),
        "merged": Merged(second, resampling_threshold),
        "separate": Separate(second, resampling_threshold),
        "never": None,
    }[resampling]
    sharp = sharpness or device_defaults.SHARPNESS
    return Lyanna(head, nodes, **shape, resampling=again, sharpness=sharp)


def lyanna_member(head: Any, **options: Any) -> "Drafter":
    """Lyanna with the whole tree of the chain, for a merge with a budget to choose from."""
    from jspec.methods import device_defaults

    shape = {name: options[name] for name in ("max_depth", "beam") if name in options}
    return lyanna(head, device_defaults.whole_chain(**shape), **options)


def _given(template: Paths | None, **others: Any) -> "Template | None":
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


def widened(make: Maker) -> Maker:
    """The builder of a method whose rounds are as wide as pays, if widths are given."""

    def made(
        models: Models,
        widths: tuple[int, ...] | None = None,
        token_budget: float | None = None,
        **options: Any,
    ) -> Built:
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

    return made


def recommended(make: Maker) -> Maker:
    """The builder of `auto`: widths that fit the device, and as many nodes as the largest."""

    def made(
        models: Models,
        widths: tuple[int, ...] | None = None,
        num_speculative_tokens: int | None = None,
        **options: Any,
    ) -> Built:
        from jspec.methods import device_defaults

        if widths is None:
            widths = device_defaults.widths(num_speculative_tokens)
        nodes = num_speculative_tokens or max(widths[-1], 1)
        return widened(make)(models, widths, num_speculative_tokens=nodes, **options)

    return made
