"""The trees of RSD's two experiments (Jeon et al. 2024, appendix C.3), and others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from jspec.drafters.contrib.coupled_tree import CoupledTree
from jspec.drafters.draft_model.dyspec import DySpec
from jspec.drafters.draft_model.rsd_c import RSDC
from jspec.drafters.draft_model.rsd_s import RSDS
from jspec.drafters.draft_model.spectr import SpecTr
from jspec.drafters.draft_model.speculative_decoding import SpeculativeDecoding
from jspec.protocols import CausalLM, Drafter
from jspec.verify import schemes

Shape = tuple[int, ...]

TEMPERATURES = ((0.3, 1.0), (1.0, 0.95))
"""(temperature, top-p) of the paper's tasks; both models are filtered."""


@dataclass(frozen=True)
class Method:
    """A drafter with its published verifier, and what the numbers of its shape mean."""

    title: str
    build: Callable[[CausalLM, Shape], Drafter]
    nodes: Callable[[Shape], int]
    """Tokens that the target verifies in a round, without the root."""
    length: Callable[[Shape], int]
    """Draft forward passes in a round, at most: L of the memory-bound speed-up."""
    text: Callable[[Shape], str]


def _beams(title: str, build: Callable[[CausalLM, Shape], Drafter]) -> Method:
    """Returns shapes K x L."""
    return Method(title, build, lambda s: s[0] * s[1], lambda s: s[1], lambda s: "{}x{}".format(*s))


def _budgets(title: str, build: Callable[[CausalLM, Shape], Drafter]) -> Method:
    """Returns shapes (nodes, most levels)."""
    text = "{} nodes, depth {}".format
    return Method(title, build, lambda s: s[0], lambda s: min(s), lambda s: text(*s))


_RRS = schemes.RECURSIVE
METHODS: Mapping[str, Method] = {
    "speculative_decoding": Method(
        "SD",
        lambda model, s: SpeculativeDecoding(model, *s, scheme=_RRS),
        lambda s: s[0],
        lambda s: s[0],
        lambda s: f"{s[0]}",
    ),
    "spectr": _beams(
        "SpecTr",
        lambda model, s: SpecTr(model, num_chains=s[0], max_depth=s[1], scheme=schemes.K_SEQ),
    ),
    "rsd_c": Method(
        "RSD-C",
        lambda model, s: RSDC(model, s, scheme=_RRS),
        lambda s: sum(accumulate(s, mul)),
        len,
        lambda s: "-".join(map(str, s)),
    ),
    "rsd_s": _beams("RSD-S", lambda model, s: RSDS(model, beam=s[0], max_depth=s[1], scheme=_RRS)),
    # As published: no bound on children, and a draft temperature of 0.6 whatever the target's.
    "dyspec": _budgets(
        "DySpec",
        lambda model, s: DySpec.published(model, num_speculative_tokens=s[0], max_depth=s[1]),
    ),
    "coupled_tree": _budgets(
        "CoupledTree", lambda model, s: CoupledTree(model, *s, beam=min(8, s[0]))
    ),
}


PAPER = ("speculative_decoding", "spectr", "rsd_c", "rsd_s")
"""The methods of the paper's tables."""
DEEPEST_TREE = 16
"""Levels of DySpec's trees at most where the budget is given. Algorithm 1 has no bound:
`benchmarks.dyspec.rounds` counts the levels of every round."""


def _one(width: int, length: int) -> Shape:
    """Returns the branching [width, 1, .., 1]."""
    return (width, *[1] * (length - 1))


Group = Mapping[str, tuple[Shape, ...]]


def _length(length: int, beams: tuple[int, int], widths: tuple[int, int]) -> Group:
    """Returns the trees compared at a length; jspec's have the full binary tree's nodes."""
    paths = tuple((beam, length) for beam in beams)
    nodes = 2 ** (length + 1) - 2
    return {
        "speculative_decoding": ((length,),),
        "spectr": paths,
        "rsd_c": ((2,) * length, *(_one(width, length) for width in widths)),
        "rsd_s": paths,
        "dyspec": ((nodes, length),),
        "coupled_tree": ((nodes, length),),
    }


def _budget(nodes: int, paths: tuple[Shape, Shape], branchings: tuple[Shape, ...]) -> Group:
    """Returns the trees compared at a budget, and the chain of as many tokens."""
    return {
        "speculative_decoding": ((nodes,),),
        "spectr": paths,
        "rsd_c": branchings,
        "rsd_s": paths,
        "dyspec": ((nodes, min(nodes, DEEPEST_TREE)),),
        "coupled_tree": ((nodes, 8),),
    }


EXPERIMENTS: Mapping[int, Mapping[int, Group]] = {
    1: {
        2: _length(2, (2, 3), (2, 3)),
        3: _length(3, (3, 4), (3, 4)),
        4: _length(4, (5, 7), (5, 7)),
        5: _length(5, (6, 12), (6, 12)),
    },
    2: {
        6: _budget(6, ((2, 3), (3, 2)), (_one(2, 3), (2, 2), _one(3, 2))),
        10: _budget(10, ((2, 5), (5, 2)), (_one(2, 5), (2, 2, 1), _one(5, 2))),
        14: _budget(14, ((2, 7), (7, 2)), (_one(2, 7), (2, 2, 2), _one(7, 2))),
        21: _budget(21, ((3, 7), (7, 3)), (_one(3, 7), (3, 2, 2), _one(7, 3))),
        30: _budget(30, ((5, 6), (6, 5)), ((2, 2, 2, 2), _one(5, 6), _one(6, 5))),
    },
}
"""Shapes of the trees by experiment, by draft length (1) or budget (2), and by method."""


def settings(experiments: list[int], sizes: str | None = None) -> list[tuple[str, Shape]]:
    """Returns each (method, shape) of the experiments of these sizes, budget by budget."""
    kept = None if sizes is None else set(map(int, sizes.split(",")))
    groups = (
        group
        for number in experiments
        for size, group in EXPERIMENTS[number].items()
        if kept is None or size in kept
    )
    found = ((name, shape) for group in groups for name in group for shape in group[name])
    return list(dict.fromkeys(found))
