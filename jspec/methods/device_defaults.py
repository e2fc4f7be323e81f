"""Default trees of the methods, of a size that the default device scores cheaply.

An accelerator scores the published trees in the time of one token; a CPU takes many times as long.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jspec.tree import Template

_CPU_NODES = 7
"""The number of drafted nodes on a CPU, with the root 8 tokens a forward pass: of 4, 6, 8,
12, 16 and 24, the best or next to it with the bundled model. A larger model would gain from more,
as its forward passes cost less alongside one."""

_TILED_NODES = 63
"""The number of drafted nodes elsewhere, with the root four tiles of 16 tokens: the published 81
tokens of Token Recycling are one more than five, and an H200 scores 64 for less."""

_ACCEPTANCE = (0.538, 0.173, 0.076, 0.048, 0.023, 0.028, 0.015, 0.016)
"""The acceptance by rank of the bundled models at temperature 1 in the coupled scheme, as
`python -m benchmarks.dyspec.acceptance --temperatures 1` printed on 2026-11-21."""
_NODES = 15
"""The nodes of Sequoia's default tree, with the root 16 tokens a forward."""
_NARROW = 32
"""The most nodes of a tree whose beam is small, since the time to draft it counts."""
_DEPTH = 8
"""The most levels of Sequoia's default tree, as DySpec's; the best for that vector has 5."""
SHARPNESS = 3.0
"""The sharpness of heads' trees. With the bundled heads, greedy and sampled, 2 to 4 take
more tokens per round than the published 1, by up to a tenth where a tree is small for its depth."""


def budget(usual: int = _TILED_NODES) -> int:
    """Returns the drafted nodes that this device scores cheaply."""
    return _CPU_NODES if _on_cpu() else usual


def widths(limit: int | None = None) -> tuple[int, ...]:
    """Returns a few widths, since each is a program; batches take the narrow ones."""
    usual = (0, _CPU_NODES) if _on_cpu() else (0, 15, _TILED_NODES)
    return usual if limit is None else (*(width for width in usual if width < limit), limit)


def _on_cpu() -> bool:
    from jspec._xla import backend

    return backend.platform() == "cpu"


def token_recycling(nodes: int | None = None, k: int | None = None) -> "Template":
    """Returns the best tree of Token Recycling for this device."""
    from jspec.drafters.retrieval.token_recycling import fit_tree

    return fit_tree(nodes or budget(), k or 8)


def lookahead() -> dict[str, int]:
    """Returns Lookahead's options: the published ones, or on a CPU what it scores cheaply."""
    return {"window": 4, "ngram": 2, "guesses": 4} if _on_cpu() else {}


def eagle(nodes: int | None = None) -> "Template":
    """Returns EAGLE-1's published tree, or the best tree of a size; smaller on a CPU."""
    from jspec.drafters.draft_head.eagle import PUBLISHED

    if nodes is None and not _on_cpu():
        return PUBLISHED
    return token_recycling(nodes)


def count_nodes(max_depth: int = 3, beam: int = 4) -> int:
    """Returns the nodes of the whole tree of a beam, k + (N - 1) k^2; the default is Lyanna's."""
    return beam + (max_depth - 1) * beam**2


def _wide_enough(beam: int, depth: int, nodes: int | None, max_beam: int | None = None) -> int:
    """Returns the beam, or if it offers fewer nodes the next one that has so many."""
    while nodes and 0 < count_nodes(depth, beam) < nodes and beam != max_beam:
        beam += 1
    return beam


def eagle2(nodes: int | None, depth: int | None, beam: int | None) -> tuple[int, int, int]:
    """Returns (nodes, levels, beam) of EAGLE-2's tree for this device."""
    # Few nodes go further in depth: the bundled head's first guess is nearly always right.
    usual = (_CPU_NODES, 6, 2) if _on_cpu() else (59, 8, 10)
    depth = depth or usual[1]
    beam = beam or _wide_enough(usual[2], depth, nodes)
    return nodes or min(usual[0], count_nodes(depth, beam)), depth, beam


def block(nodes: int | None, depth: int, beam: int | None, candidates: int = 32) -> tuple[int, int]:
    """Returns (nodes, beam) of a block drafter's tree for this device."""
    # A beam of 8 takes 5 to 7% more tokens per round of 63 nodes than one of 4.
    is_narrow = _on_cpu() and (nodes or 0) <= _NARROW
    beam = beam or _wide_enough(min(4 if is_narrow else 8, candidates), depth, nodes, candidates)
    return nodes or min(budget(), count_nodes(depth, beam)), beam


def lyanna(nodes: int | None, second: int | None, **shape: int) -> tuple[int, int]:
    """Returns the sizes of Lyanna's fresh and re-sampled trees for this device."""
    usual = (_CPU_NODES - 2, 2) if _on_cpu() else (11, 6)
    return nodes or min(usual[0], count_nodes(**shape)), second or usual[1]


def medusa(nodes: int | None, heads: int) -> "Template":
    """Returns the part of Medusa's published tree that suits this device."""
    from jspec.drafters.draft_head.medusa import PUBLISHED, published

    depth = min(heads, PUBLISHED.depth)
    max_nodes = sum(len(path) <= depth for path in PUBLISHED.paths)
    return published(nodes or min(budget(), max_nodes), depth)


def sequoia(
    nodes: int | None = None,
    acceptance: Sequence[float] | None = None,
    depth: int | None = None,
) -> "Template":
    """Sequoia's best tree."""
    from jspec.drafters.draft_model.sequoia_tree import best_template

    return best_template(acceptance or _ACCEPTANCE, nodes or _NODES, depth or _DEPTH)
