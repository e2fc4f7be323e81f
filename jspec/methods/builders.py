"""Builds a method's drafter from its class, the models, and the options that were given.

The first field of the class says what the drafter is made of: `model` is a draft model, `head` a
trained head, `vocab_size` the target's; any other is an option. Options are the annotated fields of
the class, and the annotated arguments of the method's *fit*: a function that turns options into
fields, with what `jspec.methods.device_defaults` finds to fit the device where none was given.
JAX is imported when a drafter is built, and not before.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Annotated, Any

from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, TOKEN, Integer, Number, Paths, Place, Several, Word
from jspec._validate.options import Option, options_of
from jspec.methods import device_defaults
from jspec.methods.llm import LLM
from jspec.methods.method import Maker, Models

COUPLED = "coupled"
"""The scheme whose tokens are those of plain decoding; the only one without a draft model."""

Fields = dict[str, Any]
"""The fields of a drafter, and its `params` if these are not the weights of a model."""
Fit = Callable[..., Fields]
"""The function `fit(models, **options)`, which turns options into fields."""
_Tree = Annotated[tuple[tuple[int, ...], ...] | None, Paths(), "the tree, node by node"]
_Fitted = Annotated[int | None, COUNT, "drafted nodes; the tree is fitted to this number"]
_HEAD = Place("a folder, or a bundled head's name")


def as_given(models: Models, **options: Any) -> Fields:
    """Returns the fit of a drafter whose fields are its options alone."""
    return options


def options(
    drafter: str, fit: Fit, schemes: tuple[str, ...], heads: tuple[str, ...]
) -> Mapping[str, Option]:
    """Returns the options of a method, by name; for the arguments see `build`."""
    import jspec

    kind = getattr(jspec, drafter)
    table = dict(options_of(kind)) | dict(options_of(fit))
    if heads:
        help = "trained head; by default the target's own or the bundled one"
        table["head"] = Option("head", _HEAD, help)
    if schemes:
        help = f"{COUPLED} is the default and keeps plain decoding's tokens"
        table["scheme"] = Option("scheme", Word((COUPLED, *schemes)), help, default=COUPLED)
    if schemes and not heads:
        help = "temperature of the draft; by default the target's"
        table["draft_temperature"] = Option("draft_temperature", Number(1e-6, 10**6), help)
    return table


def build(
    drafter: str,
    fit: Fit,
    heads: tuple[str, ...],
    models: Models,
    head: str | None = None,
    scheme: str = COUPLED,
    draft_temperature: float | None = None,
    **options: Any,
) -> LLM:
    """Builds a method's drafter from checked options."""
    import jspec

    kind = getattr(jspec, drafter)
    of = next(iter(inspect.signature(kind).parameters), None)
    target, params = models.target, None
    made_of: tuple[Any, ...] = ()
    if of == "vocab_size":
        made_of = (target.model.vocab_size,)
    elif of == "model":
        assert models.draft is not None, "`Method.build` has found one or refused"
        made_of, params = (models.draft.model,), models.draft.params
    elif of == "head":
        loaded = _head(models, head, heads)
        target, made_of, params = loaded.target, (loaded.head,), loaded.params
        models = replace(models, head=loaded.head)
    fields = fit(models, **options)
    params = fields.pop("params", params)
    if scheme != COUPLED:
        fields["scheme"] = getattr(jspec.schemes, scheme.upper())
    if draft_temperature is not None:
        fields["sampling"] = jspec.Sampling(draft_temperature)
    return LLM(target, drafter=kind(*made_of, **fields), drafter_params=params)


def _head(models: Models, name: str | None, kinds: tuple[str, ...]) -> Any:
    from jspec.models import heads

    kind, *further = kinds
    # One that came with the weights is of EAGLE's kinds, of which a method takes several.
    source = name or (heads.own(models.target) if further else None)
    return heads.load(source or heads.find(kind, models.target), models.target, only=kinds)


def _check_alone(tree: str, **sizes: Any) -> None:
    """Raises InputError if an option that makes a tree was given as well as a whole tree."""
    for name, value in sizes.items():
        if value is not None:
            raise InputError(
                f"{tree} and {name} were both given; {tree} is the whole tree, so leave one of "
                "them out"
            )


def _tree(template: Any, grow: Callable[..., Any], **sizes: Any) -> Fields:
    """Returns the tree's field, given node by node or made by other options."""
    from jspec.tree import Template

    if template is None:
        return {"template": grow(*sizes.values())}
    _check_alone("template", **sizes)
    return {"template": Template(template)}


# Fits of drafters without weights.


def token_recycling(
    models: Models,
    template: _Tree = None,
    num_speculative_tokens: _Fitted = None,
    shape: Annotated[
        str | None,
        Word(("published", "measured")),
        "shape of the tree of 80 nodes: the paper's, or by measured acceptance",
    ] = None,
    **options: Any,
) -> Fields:
    from jspec.drafters.retrieval.token_recycling import MEASURED, PUBLISHED

    options, nodes = _few_candidates(models) | options, num_speculative_tokens
    if shape is None:
        grow = partial(device_defaults.token_recycling, k=options.get("k"))
        return options | _tree(template, grow, num_speculative_tokens=nodes)
    _check_alone(f"shape {shape}", num_speculative_tokens=nodes, template=template)
    return options | {"template": {"published": PUBLISHED, "measured": MEASURED}[shape]}


def _few_candidates(models: Models) -> dict[str, int]:
    """Returns the candidates of a matrix row where there are fewer tokens than it usually holds."""
    from jspec.drafters.retrieval.token_recycling import TokenRecycling

    size = models.target.model.vocab_size
    return {"k": size} if size < TokenRecycling.k else {}


def spine(
    models: Models,
    num_speculative_tokens: _Fitted = None,
    ngrams: Annotated[
        str | None,
        Place("a file of `jspec train head --kind ngrams` or `jspec warm --out`"),
        "table of the target's distributions after two tokens or one",
    ] = None,
    **options: Any,
) -> Fields:
    from jspec.methods import ngram_tables

    nodes = num_speculative_tokens or device_defaults.budget()
    table = None if ngrams is None else ngram_tables.load(ngrams, models.target)
    fields = _few_candidates(models) | options
    return fields | {"num_speculative_tokens": nodes, "params": table}


def most_of_spine(**options: Any) -> int:
    """Returns as many nodes as `auto` drafts with it: the templates have no more."""
    return device_defaults.widths()[-1]


def lookahead(models: Models, **options: Any) -> Fields:
    sizes = options.keys() & {"window", "ngram", "guesses"}
    return options if sizes else device_defaults.lookahead() | options


def rest(
    models: Models,
    datastore: Annotated[str, Place("a file of `jspec datastore build`"), "the text to search"],
    num_speculative_tokens: int | None = None,
    **options: Any,
) -> Fields:
    from jspec.drafters.retrieval import datastore as datastores

    nodes = num_speculative_tokens or most_of_rest(device_defaults.budget(), **options)
    store = datastores.load(datastore, models.target.tokenizer.get_vocab())
    return options | {"num_speculative_tokens": nodes, "params": store}


def most_of_rest(nodes: int = 64, **options: Any) -> int:
    """Returns the published number of nodes, or all that REST reads with these options if fewer."""
    from jspec.drafters.retrieval.rest import REST

    read = prod(options.get(name, getattr(REST, name)) for name in ("num_matches", "max_depth"))
    return max(min(nodes, read), 1)


# With a draft model.


def sequoia(
    models: Models,
    template: _Tree = None,
    num_speculative_tokens: _Fitted = None,
    acceptance: Annotated[
        tuple[float, ...] | None,
        Several(Number(0, 1), "[0.6, 0.1]"),
        "probability of a child, by rank",
    ] = None,
    max_depth: Annotated[int | None, COUNT, "most levels"] = None,
) -> Fields:
    sizes = {"num_speculative_tokens": num_speculative_tokens, "acceptance": acceptance}
    return _tree(template, device_defaults.sequoia, **sizes, max_depth=max_depth)


def pard(
    models: Models,
    template: _Tree = None,
    num_speculative_tokens: _Fitted = None,
    mask_token_id: Annotated[
        int | None,
        TOKEN,
        "id of the mask token; by default `pard_token` of the draft model's config.json",
    ] = None,
) -> Fields:
    from jspec.tree import chain

    assert models.draft is not None, "`Method.build` has found one or refused"
    mask = models.draft.mask_token_id if mask_token_id is None else mask_token_id
    if mask is None:
        raise InputError(
            "method pard needs a mask token and the draft model's config.json has no pard_token; "
            "name a draft model that was trained as PARD, or pass mask_token_id"
        )
    tree = {"mask_token_id": mask}
    if template is None and num_speculative_tokens is None:
        return tree  # of the drafter's own default
    return tree | _tree(template, chain, num_speculative_tokens=num_speculative_tokens)


# With a trained head.


def eagle(models: Models, template: _Tree = None, num_speculative_tokens: _Fitted = None) -> Fields:
    return _tree(template, device_defaults.eagle, num_speculative_tokens=num_speculative_tokens)


def medusa(
    models: Models, template: _Tree = None, num_speculative_tokens: _Fitted = None
) -> Fields:
    grow = partial(device_defaults.medusa, heads=models.head.num_heads)
    return _tree(template, grow, num_speculative_tokens=num_speculative_tokens)


def eagle2(
    models: Models,
    num_speculative_tokens: int | None = None,
    max_depth: int | None = None,
    beam: int | None = None,
    **options: Any,
) -> Fields:
    shape = device_defaults.eagle2(num_speculative_tokens, max_depth, beam)
    names = "num_speculative_tokens", "max_depth", "beam"
    sharp = {"sharpness": device_defaults.SHARPNESS}
    return sharp | options | dict(zip(names, shape, strict=True))


def block(
    models: Models,
    num_speculative_tokens: int | None = None,
    max_depth: int | None = None,
    beam: int | None = None,
    num_candidates: int = 32,
) -> Fields:
    depth = models.head.num_slots if max_depth is None else max_depth
    nodes, beam = device_defaults.block(num_speculative_tokens, depth, beam, num_candidates)
    tree = {"num_speculative_tokens": nodes, "max_depth": max_depth, "beam": beam}
    return tree | {"num_candidates": num_candidates}


def lyanna(
    models: Models,
    num_speculative_tokens: int | None = None,
    resampling: Annotated[
        str,
        Word(("fused", "merged", "separate", "never")),
        "how the states of a rejected draft are used again",
    ] = "fused",
    resampled_tokens: Annotated[int | None, COUNT, "drafted nodes of the re-sampled tree"] = None,
    resampling_threshold: Annotated[
        int, Integer(0), "more levels than this have to be left for a re-sampled tree"
    ] = 0,
    sharpness: float | None = None,
    **shape: int,
) -> Fields:
    from jspec.drafters.draft_head import lyanna_resampling as ways

    nodes, second = device_defaults.lyanna(num_speculative_tokens, resampled_tokens, **shape)
    way = getattr(ways, resampling.capitalize(), None)  # none is "never"
    return shape | {
        "num_speculative_tokens": nodes,
        "resampling": way and way(second, resampling_threshold),
        "sharpness": sharpness or device_defaults.SHARPNESS,
    }


def most_of_lyanna(**options: Any) -> int:
    """Returns the number of nodes of the chain's whole tree."""
    shape = {name: options[name] for name in ("max_depth", "beam") if name in options}
    return device_defaults.count_nodes(**shape)


# With widths that are chosen.


def widen(
    make: Maker,
    models: Models,
    widths: Annotated[
        tuple[int, ...] | None,
        Several(Integer(0, COUNT.high), "[0, 3, 7, 15]"),
        "numbers of drafted nodes that a round may verify; the policy chooses one per round",
    ] = None,
    **options: Any,
) -> LLM:
    """Builds the drafter of a method whose rounds are as wide as pays, if widths are given."""
    llm = make(models, **options)
    if widths is None:
        return llm
    from jspec.policies.adaptive import Adaptive

    arguments = {"drafter": llm.drafter, "drafter_params": llm.drafter_params}
    return LLM(llm.target, **arguments, policy=Adaptive(widths))


def build_auto(
    make: Maker,
    models: Models,
    widths: tuple[int, ...] | None = None,
    num_speculative_tokens: int | None = None,
    head: Annotated[
        str | None, _HEAD, "trained head that drafts along with the other sources"
    ] = None,
    ngrams: str | None = None,
    **options: Any,
) -> LLM:
    """Builds `auto`: widths for the device, the n-gram table, the weights' own head."""
    from jspec.methods import ngram_tables
    from jspec.models import heads

    if widths is None:
        widths = device_defaults.widths(num_speculative_tokens)
    nodes = num_speculative_tokens or max(widths[-1], 1)
    options["ngrams"] = ngrams or ngram_tables.find(models.target)
    head = head or heads.own(models.target)
    return widen(make, models, widths, num_speculative_tokens=nodes, head=head, **options)
