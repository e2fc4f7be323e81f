"""How the methods of the command line are made: a drafter and its weights, from models and options.

Each gets the options that were given; for the others the drafter's own defaults hold, or what
`jspec.methods.device_defaults` finds to fit the device. JAX is imported by what is called, not
before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from jspec.errors import InputError

if TYPE_CHECKING:
    from jspec.base import PyTree
    from jspec.models import Loaded
    from jspec.protocols import Drafter
    from jspec.tree import Template

COUPLED = "coupled"
"""The scheme whose tokens are those of plain decoding; the only one without a draft model."""


@dataclass(frozen=True)
class Models:
    """What a drafter may be built from."""

    target: "Loaded"
    draft: "Loaded | None" = None
    """Given if and only if the method needs one; its vocabulary is the target's."""


Build = Callable[..., "tuple[Drafter, PyTree]"]
"""`build(models, **options)` gives the drafter and its weights."""


def autoregressive(models: Models) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.autoregressive import Autoregressive

    return Autoregressive(), None


def token_recycling(
    models: Models,
    num_speculative_tokens: int | None = None,
    template: tuple[tuple[int, ...], ...] | None = None,
    shape: str | None = None,
    **options: Any,
) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.retrieval.token_recycling import MEASURED, PUBLISHED, TokenRecycling
    from jspec.methods import device_defaults
    from jspec.tree import Template

    if template is not None:
        _check_alone(num_speculative_tokens=num_speculative_tokens, shape=shape)
        tree = Template(template)
    elif shape is not None:
        if num_speculative_tokens is not None:
            raise InputError(
                f"shape {shape} has 80 nodes and num_speculative_tokens was given too; leave one "
                "of them out"
            )
        tree = {"published": PUBLISHED, "measured": MEASURED}[shape]
    else:
        tree = device_defaults.recycling(num_speculative_tokens, options.get("k"))
    return TokenRecycling(models.target.model.vocab_size, template=tree, **options), None


def token_recycling_dynamic(
    models: Models, num_speculative_tokens: int | None = None, **options: Any
) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.retrieval.dynamic_token_recycling import DynamicTokenRecycling
    from jspec.methods import device_defaults

    nodes = num_speculative_tokens or device_defaults.budget()
    # Of use from the first round on: a line that was never written offers nothing.
    options = {"update_on_prefill": True, **options}
    return DynamicTokenRecycling(models.target.model.vocab_size, nodes, **options), None


def prompt_lookup(models: Models, **options: Any) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.retrieval.prompt_lookup import PromptLookup

    return PromptLookup(**options), None


def lookahead(models: Models, **options: Any) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.retrieval.lookahead import Lookahead
    from jspec.methods import device_defaults

    if not options.keys() & {"window", "ngram", "guesses"}:
        options = device_defaults.lookahead() | options
    return Lookahead(models.target.model.vocab_size, **options), None


def suffix(models: Models, **options: Any) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.retrieval.suffix import Suffix

    return Suffix(**options), None


def rest(
    models: Models, datastore: str, num_speculative_tokens: int | None = None, **options: Any
) -> "tuple[Drafter, PyTree]":
    from jspec.drafters.retrieval import datastore as datastores
    from jspec.drafters.retrieval.rest import REST
    from jspec.methods import device_defaults

    nodes = num_speculative_tokens or _most_read(device_defaults.budget(64), options)
    drafter = REST(num_speculative_tokens=nodes, **options)
    return drafter, datastores.load(datastore, models.target.tokenizer.get_vocab())


def whole_rest(models: Models, **options: Any) -> "tuple[Drafter, PyTree]":
    """The published number of nodes, for a mixture to choose from."""
    return rest(models, num_speculative_tokens=_most_read(64, options), **options)


def _most_read(nodes: int, options: Mapping[str, Any]) -> int:
    """So many, or all that REST reads with these options."""
    from jspec.drafters.retrieval.rest import REST

    read = (options.get(name, getattr(REST, name)) for name in ("num_matches", "max_depth"))
    return max(min(nodes, prod(read)), 1)


def drafting(drafter: str, **names: str) -> Build:
    """Builds a drafter that has a model.

    Args:
        drafter: its public name.
        names: from options to its arguments, where they are called otherwise.
    """

    def build(
        models: Models,
        scheme: str = COUPLED,
        draft_temperature: float | None = None,
        **options: Any,
    ) -> "tuple[Drafter, PyTree]":
        import jspec
        from jspec.verify import schemes

        assert models.draft is not None, "the method needs a draft model"
        made = getattr(jspec, drafter)(
            models.draft.model,
            **{names.get(option, option): value for option, value in options.items()},
            scheme=getattr(schemes, scheme.upper()),
            sampling=None if draft_temperature is None else jspec.Sampling(draft_temperature),
        )
        return made, models.draft.params

    return build


def sequoia(
    models: Models,
    template: tuple[tuple[int, ...], ...] | None = None,
    num_speculative_tokens: int | None = None,
    acceptance: tuple[float, ...] | None = None,
    max_depth: int | None = None,
    **options: Any,
) -> "tuple[Drafter, PyTree]":
    from jspec.methods import device_defaults
    from jspec.tree import Template

    if template is None:
        tree = device_defaults.sequoia(num_speculative_tokens, acceptance, max_depth)
    else:
        _check_alone(
            num_speculative_tokens=num_speculative_tokens,
            acceptance=acceptance,
            max_depth=max_depth,
        )
        tree = Template(template)
    return drafting("Sequoia")(models, template=tree, **options)


def headed(drafter: Callable[..., "Drafter"], kind: str, *others: str) -> Build:
    """Builds a drafter that has a trained head.

    Args:
        drafter: gets the head and the options.
        kind: of the bundled head, see `jspec.models.heads.registry`.
        others: kinds that serve as well.
    """

    def build(models: Models, head: str | None = None, **options: Any) -> "tuple[Drafter, PyTree]":
        from jspec.models import heads

        name = head or heads.find(kind, models.target)
        loaded = heads.load(name, models.target, only=(kind, *others))
        return drafter(loaded.head, **options), loaded.params

    return build


def eagle(
    head: Any,
    template: tuple[tuple[int, ...], ...] | None = None,
    num_speculative_tokens: int | None = None,
) -> "Drafter":
    from jspec.drafters.draft_head.eagle import EAGLE
    from jspec.methods import device_defaults

    tree = _given(template, num_speculative_tokens)
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

    shape = device_defaults.expanded(num_speculative_tokens, max_depth, beam)
    return EAGLE2(head, *shape, sharpness=sharpness or device_defaults.SHARPNESS)


def medusa(
    head: Any,
    template: tuple[tuple[int, ...], ...] | None = None,
    num_speculative_tokens: int | None = None,
) -> "Drafter":
    from jspec.drafters.draft_head.medusa import Medusa
    from jspec.methods import device_defaults

    tree = _given(template, num_speculative_tokens)
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
    from jspec.drafters.draft_head.lyanna_resampling import Fused, Separate
    from jspec.methods import device_defaults

    nodes, second = device_defaults.token_info(num_speculative_tokens, resampled_tokens, **shape)
    again = {
        "fused": Fused(second, resampling_threshold),
        "separate": Separate(second, resampling_threshold),
        "never": None,
    }[resampling]
    sharp = sharpness or device_defaults.SHARPNESS
    return Lyanna(head, nodes, **shape, resampling=again, sharpness=sharp)


def whole_lyanna(head: Any, **options: Any) -> "Drafter":
    """The whole tree of the chain, for a mixture to choose from."""
    from jspec.methods import device_defaults

    return lyanna(head, device_defaults.most_of_chain(**_shape(options)), **options)


def _shape(options: Mapping[str, Any]) -> dict[str, int]:
    return {name: options[name] for name in ("max_depth", "beam") if name in options}


def _given(
    template: tuple[tuple[int, ...], ...] | None, num_speculative_tokens: int | None
) -> "Template | None":
    """The tree that was given node by node, if one was."""
    from jspec.tree import Template

    if template is None:
        return None
    _check_alone(num_speculative_tokens=num_speculative_tokens)
    return Template(template)


def _check_alone(**others: Any) -> None:
    """Raises InputError if beside a template something was given that makes a tree."""
    for name, value in others.items():
        if value is not None:
            raise InputError(
                f"template and {name} were both given; the template is the whole tree, so leave "
                "one of them out"
            )
