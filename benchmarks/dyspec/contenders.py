"""Methods with a draft model at one budget of drafted nodes, and what they must know first."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import numpy as np

import jspec
from benchmarks.model_pairs import Pair
from benchmarks.texts import Prompts, continued, join
from benchmarks.whole_rounds import Decoding
from jspec.drafters.draft_model import acceptance_vector, sequoia_tree
from jspec.drafters.draft_model.draft_model import DraftModel
from jspec.protocols import Drafter
from jspec.types import PyTree
from jspec.verify import schemes

LONGEST = 24
"""Tokens of a chain at most, whatever the budget."""
BEAMS = {4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 768: (24, 32)}
"""RSD-S's width and length by budget: near the squares of the paper's larger budgets."""


@dataclass(frozen=True, eq=False)
class Workload:
    """Prompts of a pair, a slice of each class for each seed, and one more to learn from."""

    pair: Pair
    count: int
    """Prompts of each class for each seed."""
    seeds: int
    prompt_tokens: int
    new_tokens: int

    @cached_property
    def _prompts(self) -> dict[str, Prompts]:
        slices = self.seeds + 1
        return {
            kind: self.pair.prompts(kind, self.count * slices, self.prompt_tokens)
            for kind in self.pair.classes
        }

    def prompts(self, seed: int) -> Prompts:
        """Returns the prompts of a seed, `count` of each class; seed -1 is for learning alone."""
        slices = self.seeds + 1
        mine = slice(seed % slices, None, slices)
        return join([rows.take(mine) for rows in self._prompts.values()])

    @property
    def kinds(self) -> list[str]:
        """The class of each row."""
        return [kind for kind in self.pair.classes for _ in range(self.count)]

    def decoding(self, method: Drafter, drafter_params: PyTree) -> Decoding:
        target = self.pair.target
        return Decoding(target.model, target.params, method, drafter_params, self.new_tokens)

    @lru_cache  # noqa: B019 -- one workload a run
    def text(self, temperature: float) -> Prompts:
        """Returns the prompts to learn from with the target's answers; no text ends early."""
        prompts, target = self.prompts(-1), self.pair.target
        made = jspec.decode(
            target.model, target.params, *prompts, max_new_tokens=self.new_tokens,
            sampling=jspec.Sampling(temperature=temperature), key=-1 % 2**31,
        )  # fmt: skip
        return continued(prompts, np.asarray(made.tokens))

    @lru_cache  # noqa: B019
    def trials(
        self, temperature: float, draft_temperature: float, scheme: schemes.Scheme, width: int
    ) -> acceptance_vector.Trials:
        """Returns trials of drafted children at the tokens of `text` that the target wrote, [M, W].

        Args:
            temperature: the target's.
            draft_temperature: the draft's.
            scheme: how children are drawn and verified.
            width: children of a node.
        """
        text, pair = self.text(temperature), self.pair

        @jax.jit
        def run(params, draft_params, tokens, lengths):
            return acceptance_vector.trials(
                pair.target.model, params, pair.draft.model, draft_params,
                tokens, lengths, width=width, sampling=jspec.Sampling(temperature=temperature),
                draft_sampling=jspec.Sampling(temperature=draft_temperature), scheme=scheme, key=0,
            )  # fmt: skip

        seen = run(pair.target.params, pair.draft.params, *text)
        # From the prompt's last token on; nothing follows the last one of the text.
        place = np.arange(text.tokens.shape[1])
        first = self.prompts(-1).lengths[:, None] - 1
        own = (place >= first) & (place < text.lengths[:, None] - 1)
        return jax.tree.map(lambda array: np.asarray(array)[own], seen)

    def vector(
        self, temperature: float, draft_temperature: float, scheme: schemes.Scheme, width: int = 16
    ) -> list[float]:
        """Returns [W], the vector of `acceptance_vector.measure` over `text`."""
        width = min(width, self.pair.draft.model.vocab_size)
        return np.mean(
            self.trials(temperature, draft_temperature, scheme, width).kept, axis=0
        ).tolist()


def template(vector: Sequence[float], budget: int, depth: int) -> jspec.Template:
    """Sequoia's tree, at the least depth that is as good as any up to `depth`."""
    table = sequoia_tree.solve(vector, budget, depth)
    return table.template(budget, int(table.tokens[budget].argmax()))


METHODS = (
    "speculative_decoding",
    "rsd_s",
    "sequoia",
    "dyspec",
    "coupled_tree",
    "speculative_decoding coupled",
    "rsd_s coupled",
    "sequoia coupled",
    "dyspec coupled",
)
"""Methods' names. Those not called coupled verify by recursive rejection, as published."""
EXTRA = (
    "threshold",
    "threshold 1/8",
    "specinfer",
    "dyspec beam 8",
    "dyspec deep",
    "sequoia deep",
)
LEARNING = ("coupled_tree",)
"""Methods that start with what they learnt from separate prompts, as Sequoia has its vector."""


def narrow(budget: int) -> dict[str, Any]:
    """Returns the shape of trees that are to be cheap to draft."""
    beam, depth = (8, 12) if budget <= 128 else (24, 24)
    return dict(num_speculative_tokens=budget, max_depth=depth, beam=min(beam, budget))


def drafter(
    name: str, work: Workload, budget: int, temperature: float, draft_temperature: float
) -> DraftModel:
    """Returns a method with `budget` drafted nodes.

    Args:
        name: of `METHODS` or `EXTRA`.
        work: what its tree may be learnt from.
        budget: drafted nodes, without the root.
        temperature: the target's, which Sequoia's tree is made for.
        draft_temperature: the draft's temperature.
    """
    model, method = work.pair.draft.model, name.removesuffix(" coupled")
    scheme = schemes.COUPLED if name.endswith(" coupled") else schemes.RECURSIVE
    if method == "specinfer":
        scheme = schemes.MULTI_ROUND
    how: dict[str, Any] = dict(
        scheme=scheme, sampling=jspec.Sampling(temperature=draft_temperature)
    )
    match method:
        case "speculative_decoding":
            return jspec.SpeculativeDecoding(model, min(budget, LONGEST), **how)
        case "rsd_s":
            beam, depth = BEAMS[budget]
            return jspec.RSDS(model, beam=beam, max_depth=depth, **how)
        case "specinfer":
            # As many sequences as they are long, as Sequoia's authors compare with it.
            width = next(w for w in range(int(budget**0.5), 0, -1) if budget % w == 0)
            branching = (width, *(1,) * (budget // width - 1))
            return jspec.SpecInfer(model, branching, **how)
        case "sequoia" | "sequoia deep":
            vector = work.vector(temperature, draft_temperature, scheme)
            levels = 12 if budget <= 128 and method == "sequoia" else 24
            return jspec.Sequoia(model, template(vector, budget, levels), **how)
        case "dyspec":
            return jspec.DySpec.published(model, num_speculative_tokens=budget, **how)
        case "dyspec deep":
            return jspec.DySpec.published(
                model, num_speculative_tokens=budget, max_depth=min(budget, 30), **how
            )
        case "dyspec beam 8":
            return jspec.DySpec(model, **narrow(budget), **how)
        case "threshold" | "threshold 1/8":
            # At 1 / nodes no tree stays below its budget here, so the threshold does nothing.
            least = 1 / 8 if method == "threshold 1/8" else threshold(budget)
            return jspec.DySpec.published(
                model, num_speculative_tokens=budget, threshold=least, **how
            )
        case "coupled_tree":
            return jspec.CoupledTree(model, **narrow(budget))
    raise ValueError(f"no method {name!r}; there are {', '.join((*METHODS, *EXTRA))}")


def threshold(budget: int) -> float:
    """Returns Algorithm 2's threshold: 0.001 for 768 nodes (Fig. 5), else 1 / nodes (4.4)."""
    return 0.001 if budget == 768 else 1 / budget
