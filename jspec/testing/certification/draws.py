"""The distribution of drafted tokens against the target's, for drawing rules.

Such a rule gives other tokens than plain decoding with the same key, of the same distribution. The
first tokens after a prompt are drawn under thousands of keys, and counted in a partition of all
texts: by the first token, behind a likely one by the second, and so on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jspec import decoding
from jspec import sampling as samplings
from jspec._validate.errors import InputError
from jspec.testing.certification.forwards import next_logits
from jspec.testing.certification.goodness import ALARM, GTest, g_test
from jspec.testing.certification.runs import CertifiedSubject
from jspec.types import Sampling

NUM_TOKENS = 3
"""Tokens per draw: two rounds, since a refusal ends one."""
_ROWS = 64
"""Draws that run together."""
_WORTH = 100
"""A beginning is looked behind if it is expected so often."""
_BEGINNINGS = 24
"""The most beginnings of a prompt that are looked behind."""
_APART = 2**20
"""The distance of prompts' row ids, so that no draws share noise."""

Text = tuple[int, ...]


@dataclass(frozen=True)
class DrawTest:
    """The G-tests of all prompts together."""

    prompts: tuple[int, ...]
    """The prompts' numbers: those whose next tokens are the least certain."""
    test: GTest
    """Against the target's probabilities."""
    num_tokens: int
    """Tokens of each draw."""

    @property
    def passed(self) -> bool:
        return self.test.p_value >= ALARM


def check_draws(
    subject: CertifiedSubject,
    drafting: dict[str, Any],
    sampling: Sampling,
    num_draws: int,
    num_prompts: int,
) -> DrawTest:
    """Draws first tokens under many keys, and tests their distribution."""
    rows = _least_certain(subject, sampling, num_prompts)
    each = -(-num_draws // (len(rows) * _ROWS)) * _ROWS
    test = GTest(0.0, 0, 0)
    for number, row in enumerate(rows):
        subject.said(f"draws: {number * each} of {len(rows) * each}")
        prompt = subject.prompts[row]
        seen = _draw(subject, drafting, sampling, prompt, (number + 1) * _APART, each)
        reference = _Distribution.of(subject, prompt, sampling, each)
        test += g_test(reference.count(seen), reference.probs)
    return DrawTest(prompts=tuple(rows), test=test, num_tokens=NUM_TOKENS)


def _distributions(
    subject: CertifiedSubject, texts: Sequence[Sequence[int]], sampling: Sampling
) -> Float[np.ndarray, "R V"]:
    """Returns the distribution of the token after each text."""
    logits = next_logits(subject.model, subject.params, texts)
    rows = jax.tree.map(lambda value: jnp.broadcast_to(value, (len(texts),)), sampling)
    probs = np.asarray(samplings.probabilities(jnp.asarray(logits), rows), np.float64)
    return probs / probs.sum(-1, keepdims=True)


def _least_certain(subject: CertifiedSubject, sampling: Sampling, count: int) -> list[int]:
    """Returns the prompts whose next token has the largest entropy."""
    context = subject.model.context
    fit = [
        row
        for row, prompt in enumerate(subject.prompts)
        if context is None or len(prompt) + NUM_TOKENS <= context
    ]
    if not fit:
        raise InputError(
            f"every prompt fills the model's context of {context}; pass one that is "
            f"{NUM_TOKENS} tokens shorter"
        )
    probs = _distributions(subject, [subject.prompts[row] for row in fit], sampling)
    entropy = -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(-1)
    return sorted(fit[place] for place in np.argsort(-entropy, kind="stable")[:count].tolist())


@dataclass(frozen=True)
class _Distribution:
    """A partition of texts into cells, and the probability of each."""

    beginnings: tuple[Text, ...]
    cells: Int[np.ndarray, "I V"]
    """The number of the cell of each token behind each beginning; -1: it is a beginning itself."""
    probs: Float[np.ndarray, " C"]

    @classmethod
    def of(
        cls,
        subject: CertifiedSubject,
        prompt: Sequence[int],
        sampling: Sampling,
        num_draws: int,
    ) -> "_Distribution":
        level: dict[Text, float] = {(): 1.0}
        distributions: dict[Text, tuple[float, Any]] = {}
        for _ in range(NUM_TOKENS):
            if not level:
                break
            level_probs = _distributions(subject, [[*prompt, *text] for text in level], sampling)
            following: dict[Text, float] = {}
            for (text, probability), probs in zip(level.items(), level_probs, strict=True):
                distributions[text] = probability, probs
                if len(text) + 1 < NUM_TOKENS:
                    for token in np.flatnonzero(probability * probs * num_draws >= _WORTH):
                        if int(token) not in subject.ends:
                            following[(*text, int(token))] = probability * float(probs[token])
            best = sorted(following.items(), key=lambda item: -item[1])
            level = dict(best[: max(0, _BEGINNINGS - len(distributions))])
        cells = np.zeros((len(distributions), subject.model.vocab_size), int)
        probabilities, number = [], 0
        for place, (text, (probability, probs)) in enumerate(distributions.items()):
            inner = np.array([(*text, token) in distributions for token in range(len(probs))])
            cells[place] = np.where(inner, -1, number + np.cumsum(~inner) - 1)
            probabilities.append(probability * probs[~inner])
            number += int((~inner).sum())
        return cls(tuple(distributions), cells, np.concatenate([*probabilities, [0.0]]))

    def count(self, seen: Sequence[Text]) -> Int[np.ndarray, " C"]:
        """Returns how often each cell was drawn."""
        places = {text: place for place, text in enumerate(self.beginnings)}
        counts = np.zeros(len(self.probs), int)
        for text in seen:
            size = 0
            while size < len(text) and text[: size + 1] in places:
                size += 1
            broken = size == len(text)
            counts[-1 if broken else self.cells[places[text[:size]], text[size]]] += 1
        return counts


def _draw(
    subject: CertifiedSubject,
    drafting: dict[str, Any],
    sampling: Sampling,
    prompt: Sequence[int],
    first_id: int,
    num_draws: int,
) -> list[Text]:
    """Returns the first tokens after a prompt under many row ids, from one prefill."""
    start = decoding.prefill(
        subject.model, subject.params, np.array([prompt] * _ROWS), max_new_tokens=NUM_TOKENS,
        stopping=subject.stopping, sampling=sampling, key=subject.key, **drafting,
    )  # fmt: skip
    seen: list[Text] = []
    for first in range(0, num_draws, _ROWS):
        ids = jnp.arange(first, first + _ROWS, dtype=jnp.int32) + first_id
        state = jax.tree.map(jnp.copy, start)
        state = replace(state, controls=replace(state.controls, keys=subject.keys(ids)))
        while not jax.device_get(state.done).all():
            state = decoding.step(subject.model, subject.params, state, **drafting)
        tokens, lengths = jax.device_get((state.tokens, state.lengths))
        seen += [tuple(tokens[place, : lengths[place]].tolist()) for place in range(_ROWS)]
    return seen
