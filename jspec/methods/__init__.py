"""Every drafting method by its name, with defaults that fit the device.

A program gets with `build` what the command line gets with `--method`. `jspec methods` prints what
stands here. JAX is imported when a drafter's options are asked for or it is built, not before.
"""

from typing import TYPE_CHECKING, Any

from jspec._validate.options import Option, unknown
from jspec.methods.method import BUNDLED, BUNDLED_DRAFT, Built, Method
from jspec.methods.registry import DEFAULT, METHODS

if TYPE_CHECKING:
    from jspec.models import Loaded
    from jspec.protocols import CausalLM
    from jspec.types import PyTree

__all__ = [
    "BUNDLED",
    "BUNDLED_DRAFT",
    "DEFAULT",
    "METHODS",
    "Built",
    "Method",
    "Option",
    "auto",
    "build",
    "describe",
    "names",
]


def names() -> tuple[str, ...]:
    """The names of all methods.

    Returns:
        The names that `build` and `--method` take, in the order of `jspec methods`.

    Example:
        >>> from jspec import methods
        >>> "token_recycling" in methods.names()
        True
    """
    return tuple(METHODS)


def describe(name: str) -> Method:
    """The entry of one method: what it drafts, what it needs, and its options.

    Args:
        name: one of `names()`.

    Returns:
        The `Method`, which has `summary`, `options`, `needs_draft_model` and `needs_training`.

    Raises:
        InputError: if no method has that name.

    Example:
        >>> from jspec import methods
        >>> methods.describe("coupled_tree").needs_draft_model
        True
        >>> [option.name for option in methods.describe("rsd_c").options]
        ['branching', 'scheme', 'draft_temperature', 'widths', 'token_budget']
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def build(name: str, target: "Loaded", *, draft: "Loaded | None" = None, **options: Any) -> Built:
    """Builds the drafter of a method for a target, ready for `jspec.decode`.

    Options that are not given have the defaults of the command line: trees that the default device
    scores cheaply, and for a bundled target the bundled head or draft model.

    Args:
        name: one of `names()`.
        target: the model that is to be decoded from, as `jspec.models.load` gives it.
        draft: the draft model of a method that needs one. If it is not given, the bundled draft
            model serves every target that has its vocabulary.
        options: those of `describe(name).options`. They are checked as `--speculative-config` is.

    Returns:
        The model to decode with, the drafter and its weights, the policy and what it knows.

    Raises:
        InputError: if the method or an option is unknown, a value is of the wrong kind or out of
            range, or the method needs what is not there. Nothing has been compiled then.

    Example:
        >>> import jspec
        >>> target = jspec.models.load("jspec-800k")
        >>> built = jspec.methods.build("prompt_lookup", target, num_speculative_tokens=4)
        >>> built.drafter.num_speculative_tokens
        4
        >>> result = jspec.decode(
        ...     built.model,
        ...     target.params,
        ...     [[1, 2, 3]],
        ...     **built.drafting,
        ...     max_new_tokens=8,
        ...     eos=target.eos,
        ... )  # doctest: +SKIP
    """
    return describe(name).build(target, draft, **options)


def auto(model: "CausalLM", params: "PyTree", **options: Any) -> Built:
    """The recommended drafter for a model of any kind: `build("auto", ..)` without a checkpoint.

    Its costs are a guess; `jspec.costs.measure` knows them.

    Args:
        model: the target.
        params: its weights.
        options: those of `describe("auto").options`.

    Raises:
        InputError: as `build`.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> built = jspec.auto(model, model.init(), widths=(0, 3))
        >>> result = jspec.decode(
        ...     model,
        ...     model.init(),
        ...     [[1, 2, 1, 2, 1]],
        ...     **built.drafting,
        ...     max_new_tokens=8,
        ... )  # doctest: +SKIP
        >>> built.policy.widths
        (0, 3)
    """
    from jspec.models import Loaded

    return build("auto", Loaded(model, params, tokenizer=None, eos=(), bos=None), **options)
