"""The mask of a tree, node by node."""

import numpy as np


def ancestors(parents: np.ndarray) -> np.ndarray:
    """[N, N] node i sees node j: itself and its ancestors, which come before it."""
    mask = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask
