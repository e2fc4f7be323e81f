"""Panels for the figures of the benches; matplotlib is imported when one is drawn."""

from pathlib import Path


def panels(columns: int, width: float, height: float):
    """A figure and its axes, [1, columns], each of a width and a height in inches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(
        1, columns, figsize=(width * columns, height), layout="constrained", squeeze=False
    )


def save(figure, path: Path) -> None:
    """Writes a figure and closes it."""
    from matplotlib import pyplot

    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def colour(index: int):
    """One of twenty colours, in turn."""
    import matplotlib

    return matplotlib.colormaps["tab20"](index % 20)
