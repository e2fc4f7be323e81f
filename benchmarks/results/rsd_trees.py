"""RSD's tables (Jeon et al. 2024) tree by tree, from `rows/rsd.jsonl`."""

from benchmarks.results import rsd


def tables() -> dict[str, str]:
    return {"lengths": rsd.every_tree(1), "budgets": rsd.every_tree(2)}


def pictures() -> dict[str, str]:
    """None but those of the paper's page."""
    return {}
