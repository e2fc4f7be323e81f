"""The certification of a model, a drafter and settings: all checks, one certificate."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import jax

from jspec._validate.errors import InputError
from jspec._xla import compiler
from jspec.drafters.autoregressive import Autoregressive
from jspec.policies.fixed_width import FixedWidth
from jspec.protocols import CausalLM, Drafter, WidthPolicy
from jspec.request import Request
from jspec.testing.certification.certificate import Certificate
from jspec.testing.certification.draws import check_draws
from jspec.testing.certification.forwards import widths_of
from jspec.testing.certification.parity import compare
from jspec.testing.certification.rounding import Rounding, measure
from jspec.testing.certification.runs import CertifiedRun, CertifiedSubject
from jspec.types import PyTree, Sampling, Stopping
from jspec.verify.choice import verifier_of
from jspec.verify.schemes import COUPLED

_REPLAYED = 8
"""Prompts whose texts are replayed to measure rounding."""
_READ = "temperature", "top_k", "top_p", "min_p", "seed", "eos", "stop_token_ids"
"""Fields of a request that a certification knows."""


def certify(
    model: CausalLM,
    params: PyTree,
    drafter: Drafter,
    drafter_params: PyTree = None,
    *,
    policy: WidthPolicy = FixedWidth(),
    policy_params: PyTree = None,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int = 64,
    batch_size: int = 1,
    request: Request = Request(temperature=1.0, seed=0),
    num_draws: int = 4096,
    num_drawn_prompts: int = 2,
    said: Callable[[str], None] = lambda line: None,
) -> Certificate:
    """Certifies that a drafter changes no token of a model, or finds where it does.

    Drafted texts are compared with plain ones, greedy and sampled with the same key. Each
    divergence is judged by the gap of the two tokens' logits: a tie if forward passes of the widths
    in question differ by that much without any drafter, else a bug. Where the drafter's verifier
    draws by a rule of its own, the same key gives other tokens; then the distribution of the first
    tokens is put to a G-test instead.

    Args:
        model: the target.
        params: its weights.
        drafter: the drafter to certify, with its verifier.
        drafter_params: its weights, if it has any.
        policy: as in `jspec.decode`.
        policy_params: as in `jspec.decode`.
        prompts: token lists.
        max_new_tokens: most tokens per prompt.
        batch_size: prompts that run together; the drafter's memory goes from group to group.
        request: of all prompts: how the sampled checks draw, from a temperature above 0, and the
            tokens that end a text; nothing else of it.
        num_draws: keys of the G-test, all prompts together.
        num_drawn_prompts: prompts of the G-test.
        said: is told in a few words how far it is.

    Returns:
        A `Certificate`: `verdict`, `exit_code`, `str` for people and `as_dict` for JSON.

    Raises:
        InputError: if an argument does not fit, before anything is compiled.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> found = jspec.testing.certify(
        ...     model, model.init(), jspec.PromptLookup(num_speculative_tokens=2),
        ...     prompts=[[1, 2, 1, 2, 1], [3, 4, 3]], max_new_tokens=8,
        ... )  # doctest: +SKIP
        >>> found.verdict  # doctest: +SKIP
        'lossless'
    """
    _check(prompts, batch_size, request, num_draws, num_drawn_prompts)
    sampling = Sampling(request.temperature, request.top_k, request.top_p, request.min_p)
    stopping = Stopping(eos=request.eos or None, stop_token_ids=request.stop_token_ids or None)
    subject = CertifiedSubject(
        model, params, prompts, max_new_tokens, batch_size, stopping, request.seed, said
    )
    verifier = verifier_of(drafter)
    coupled = verifier == COUPLED.verifier
    # A draft model that draws needs a key and a temperature, if only 0, to draw by.
    still = None if coupled else Sampling(temperature=0.0)
    first = subject.request(range(min(batch_size, len(prompts))), sampling)
    drafting: dict[str, Any] = dict(
        drafter=drafter, drafter_params=drafter_params, policy=policy, policy_params=policy_params
    )
    widths = widths_of(**drafting, **first)
    plainly: dict[str, Any] = dict(drafter=Autoregressive())

    greedy = subject.run("greedy", {"plain": plainly, "drafted": drafting}, still)
    rounding = _rounding(subject, greedy["plain"], widths)
    sampled, draws = None, None
    if coupled:
        runs = subject.run("sampled", {"plain": plainly, "drafted": drafting}, sampling)
        sampled = compare(subject, runs["plain"], runs["drafted"], sampling, rounding)
    else:
        draws = check_draws(subject, drafting, sampling, num_draws, num_drawn_prompts)
    settings = {
        "drafter": type(drafter).__name__,
        "verifier": str(verifier),
        "widths": [width - 1 for width in widths],
        "device": jax.devices()[0].device_kind,
        "num_prompts": len(prompts),
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
        "sampling": {name: float(value) for name, value in vars(sampling).items()},
    }
    parity = compare(subject, greedy["plain"], greedy["drafted"], still, rounding)
    return Certificate(settings, parity, sampled, draws, rounding, compiler.wrong())


def _check(
    prompts: Sequence[Sequence[int]],
    batch_size: int,
    request: Request,
    num_draws: int,
    num_drawn_prompts: int,
) -> None:
    if not len(prompts) or not all(len(prompt) for prompt in prompts):
        raise InputError(f"there are {len(prompts)} prompts; pass one or more, none of them empty")
    for name, value in (
        ("batch_size", batch_size),
        ("num_draws", num_draws),
        ("num_drawn_prompts", num_drawn_prompts),
    ):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}; pass an integer of at least 1")
    if not isinstance(request, Request):
        raise InputError(f"request is {request!r:.80}; pass jspec.Request(temperature=1.0, seed=0)")
    for field in fields(request):
        value = getattr(request, field.name)
        if field.name not in _READ and value != getattr(Request(), field.name):
            raise InputError(
                f"request has {field.name}={value!r:.60}; pass one of {', '.join(_READ)} alone, "
                "and the limit as max_new_tokens"
            )
    if not request.temperature > 0:
        raise InputError(
            f"temperature is {request.temperature}; pass a number above 0 for the sampled checks "
            "(greedy decoding is always checked)"
        )


def _rounding(subject: CertifiedSubject, plain: CertifiedRun, widths: tuple[int, ...]) -> Rounding:
    """Returns the rounding by the narrowest and widest passes of several tokens."""
    wider = [width for width in widths if width > 1]
    extremes = sorted({*wider[:1], *wider[-1:]})
    # As many rows as the runs had: arithmetic depends on them too.
    count = min(len(subject.prompts), max(_REPLAYED, subject.batch_size))
    return measure(
        subject.model, subject.params, subject.prompts[:count], plain.tokens[:count], extremes,
        subject.batch_size, subject.said,
    )  # fmt: skip
