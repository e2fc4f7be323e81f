"""Traces made by hand, for pages that no small model would fill."""

import numpy as np

from jspec.testing.tracing import Trace, TracedRound, TracedWidths
from jspec.types import Status

NAMES = ("Spine", "Suffix", "EAGLE")
WIDTHS = (0, 1, 3, 7, 15, 31, 63)


class Words:
    """A tokenizer of odd tokens: markup, spaces, breaks, other scripts, parts of characters."""

    texts = (
        " the", "\n", "<script>alert(1)</script>", "        ", "\t", " 猫", "🐈", " naïve", "é",
        "\u200b", " שלום", "&amp;", '"', " a-very-long-token-that-no-box-can-hold", ".", " of",
        "\n\n", "{{STYLE}}", "</style>", " x",
    )  # fmt: skip

    def decode(self, ids, skip_special_tokens=True):
        return "".join("" if i == 0 else self.texts[i % len(self.texts)] for i in ids)

    def encode(self, sequence):
        return type("Encoding", (), {"ids": [9 * len(self.texts) - 1]})

    def id_to_token(self, id):
        return "<|end|>" if id == 0 else self.texts[id % len(self.texts)]


def made(num_rounds: int, num_nodes: int, sampled: bool = False, chosen: bool = True) -> Trace:
    """Rounds of random trees in which a random path is accepted."""
    rng = np.random.default_rng(0)
    rounds, root = [], 1
    for _ in range(num_rounds):
        rounds.append(one := _round(rng, root, num_nodes, sampled, chosen))
        root = int(one.emitted[-1])
    return Trace(
        prompt=np.arange(1, 12, dtype=np.int32),
        rounds=tuple(rounds),
        status=Status.LIMIT,
        origins=NAMES,
        rule="coupled",
    )


def _round(rng, root: int, num_nodes: int, sampled: bool, chosen: bool) -> TracedRound:
    index = int(rng.integers(len(WIDTHS)))
    verified = 1 + (min(WIDTHS[index], num_nodes - 1) if chosen else num_nodes - 1)
    # Early nodes are likelier parents, so that trees are bushy and deep at once.
    parents = [-1, *(int(rng.integers(max(1, n // 2), n + 1)) - 1 for n in range(1, num_nodes))]
    tokens = rng.integers(1, 40000, num_nodes).astype(np.int32)
    tokens[0] = root
    estimates, path = np.ones(num_nodes, np.float32), [0]
    for node in range(1, num_nodes):
        estimates[node] = estimates[parents[node]] * rng.beta(2, 2)
        if node < verified and parents[node] == path[-1] and rng.random() < 0.7:
            path.append(node)
    origins = rng.random((num_nodes, len(NAMES))) < 0.4
    origins[np.arange(num_nodes), rng.integers(len(NAMES), size=num_nodes)] = True
    origins[0] = False
    probs = np.where(np.arange(num_nodes) < verified, rng.beta(1, 2, num_nodes), np.nan)
    probs[0] = 1.0
    candidates = rng.integers(1, 40000, (verified, 5 + sampled))
    spread = rng.dirichlet(np.full(8, 0.5), verified)
    spread = -np.sort(-spread)[:, : 5 + sampled]
    bonus = int(rng.integers(1, 40000))
    candidates[path[-1], 0] = bonus
    return TracedRound(
        tokens=tokens,
        parents=np.array(parents, np.int32),
        num_verified=verified,
        estimates=estimates,
        origins=origins,
        probs=probs.astype(np.float32),
        path=np.array(path, np.int32),
        bonus=bonus,
        bonus_prob=float(spread[path[-1], 0]),
        emitted=np.array([*tokens[path[1:]], bonus], np.int32),
        candidates=candidates,
        candidate_probs=spread,
        candidate_noise=rng.gumbel(size=candidates.shape) if sampled else None,
        choice=TracedWidths(
            WIDTHS,
            index,
            1 + np.log1p(np.array(WIDTHS)) * rng.uniform(0.2, 1),
            0.02 * (1 + np.array(WIDTHS) / 16) * rng.uniform(0.9, 1.1),
        )
        if chosen
        else None,
    )
