"""Rows of the papers' benches as observations: one text of one method, with its counts."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks import ledger
from benchmarks.dyspec.kernel_times import PAPER
from benchmarks.results.statistics import Interval, rank_correlation
from benchmarks.rsd.settings import EXPERIMENTS, METHODS

ROWS = Path(__file__).resolve().parent / "rows"
DEEPEST = 30
"""The bound on levels of DySpec's trees of 768 nodes, see `jspec.DySpec.published`."""

WARM = 96
"""Questions after which a method's memory counts as filled: 64 of 160 are left."""

SOURCES = {"mbpp": "mbpp", "summarization": "ours", "translation": "ours"}
"""Kinds of questions that Table 1 does not have, with their source."""

COMPARED = {1: "length", 2: "budget"}
"""Names of the sizes of RSD's experiments."""


@cache
def rows(name: str) -> list[dict]:
    """Reads `rows/NAME.jsonl`; each row has the values of its setting too."""
    path = ROWS / f"{name}.jsonl"
    found = ledger.read(path) if path.is_file() else []
    for row in found:
        if "pair" in row:
            row["short"] = row["pair"].split(", ")[0].removesuffix("-target")
    return found


@cache
def observations(kind: str) -> list[dict]:
    """Makes all observations of a kind.

    Each is its row, and besides `method`, `text`, `repeat` (a seed or a head: repeats of a text are
    summed) and the counts, which measures such as "tokens/calls" name.
    """
    return list(KINDS[kind]())


def matching(found: Iterable[dict], where: dict) -> list[dict]:
    """Finds the rows with these values; of a list, any of its values."""
    wanted = {key: one if isinstance(one, list) else [one] for key, one in where.items()}
    return [one for one in found if all(one.get(key) in of for key, of in wanted.items())]


def _dyspec() -> Iterator[dict]:
    for row in rows("dyspec"):
        kinds = row["kinds"].split(",")
        yield from _by_text(row | {"classes": row["kinds"]}, kinds)


def _trees() -> Iterator[dict]:
    """Yields RSD's trees, once for each draft length or budget that they are compared at."""
    by: dict[tuple, list[dict]] = {}
    for row in matching(rows("rsd"), {"bench": "rsd"}):
        by.setdefault((row["method"], tuple(row["shape"])), []).append(row)
    for experiment, groups in EXPERIMENTS.items():
        for size, group in groups.items():
            for name, shape in ((name, shape) for name, of in group.items() for shape in of):
                tree = {"tree": METHODS[name].text(shape), "nodes": METHODS[name].nodes(shape)}
                tree |= {"experiment": experiment, "size": size, "compared": COMPARED[experiment]}
                for row in by.get((name, shape), ()):
                    yield from _by_text(row | tree)


def _verifiers() -> Iterator[dict]:
    for row in rows("rsd_verifiers"):
        yield from _by_text(row | {"method": row["verifier"]})


def _steps() -> Iterator[dict]:
    """Yields the children kept of each text, by rule and by bin of the draft's entropy."""
    for row in rows("rsd_steps"):
        edges = ["0", *map("{:g}".format, row["edges"]), "∞"]
        every = np.array(row["positions"])
        for name, sums in row["sums"].items():
            for text, place in np.argwhere(every + every.sum(0)).tolist():
                more = {"kept": sums[text][place], "places": every[text, place]}
                more |= {"of_text": every[text].sum()}
                more |= {"bin": place, "entropy": "{} to {}".format(*edges[place : place + 2])}
                yield row | more | {"method": name, "repeat": 0, "text": text}


def _by_text(row: dict, kinds: list[str] | None = None) -> Iterator[dict]:
    """Yields the texts of a row of one seed, whose classes follow each other."""
    counts = [name for name in ("tokens", "calls", "levels", "drafted") if name in row]
    each = len(row["tokens"]) // len(kinds or [""])
    for place, values in enumerate(zip(*(row[name] for name in counts), strict=True)):
        more = {"repeat": row["seed"], "text": (row["seed"], place), "of_each": len(row["tokens"])}
        more["kind"] = kinds[place // each] if kinds else None
        yield row | more | dict(zip(counts, values, strict=True))


def _questions(page: str) -> Iterator[dict]:
    numbers: dict[tuple, int] = {}
    for row in matching(rows(page), {"bench": "recycling.counts"}):
        method = f"{row['method']}, {row['order']}" if "order" in row else row["method"]
        source = SOURCES.get(row["kind"], "table 1")
        which = row["pair"], method, source
        numbers[which] = numbers.get(which, 0) + 1
        yield row | {
            "late": numbers[which] > WARM,
            "method": method, "repeat": 0, "text": row["question"], "source": source,
            "temperature": row.get("temperature", 0),
            "tokens": sum(row["tokens"]), "calls": sum(row["rounds"]),
        }  # fmt: skip


def _pieces() -> Iterator[dict]:
    """Yields the percent of a round by piece."""
    for row in matching(rows("token_recycling"), {"bench": "recycling", "part": "time"}):
        total = sum(row["pieces"].values())
        for name, seconds in row["pieces"].items():
            share = {"method": name, "percent": 100 * seconds / total}
            yield row | share | {"repeat": 0, "text": row["question"]}


def _heads() -> Iterator[dict]:
    for row in matching(rows("lyanna"), {"bench": "lyanna.variants"}):
        if "histograms" in row:
            yield from _by_prompt(row | {"method": row["variant"], "repeat": row["seed"]})


def _ways() -> Iterator[dict]:
    for row in matching(rows("lyanna"), {"bench": "lyanna.resampling"}):
        yield from _by_prompt(row | {"method": row["way"], "repeat": row["head"]})


def _by_prompt(row: dict) -> Iterator[dict]:
    """Yields the prompts of a row, whose histograms have the rounds by accepted drafts."""
    for place, histogram in enumerate(np.array(row["histograms"])):
        reached = {f"accepted_{step}": histogram[step:].sum() for step in range(len(histogram))}
        tokens = (histogram * np.arange(1, len(histogram) + 1)).sum()
        left = {"left": histogram[:-2].sum(), "prompts": len(row["histograms"])}
        yield row | reached | left | {"text": place, "tokens": tokens, "calls": histogram.sum()}


def _heldout() -> Iterator[dict]:
    """Yields the percent of likeliest tokens accepted on held-out text after a step of training."""
    for row in matching(rows("lyanna"), {"bench": "lyanna.variants"}):
        if "step" in row:
            steps = 100 * np.array(row["heldout"]["acceptance"])
            at = {f"step_{number}": one for number, one in enumerate(steps, 1)}
            more = {"method": row["variant"], "repeat": row["seed"], "text": row["seed"]}
            more = row | more | at | {"mean": steps.mean(), "loss": row["heldout"]["loss"]}
            yield more | {"last": row["step"] == row["steps"]}


def _blocks() -> Iterator[dict]:
    for row in rows("dyspec_blocks"):
        for name, counts in row.get("blocks", {}).items():
            for place, count in enumerate(counts):
                yield row | {"method": name, "repeat": 0, "text": place, "blocks": count}


def _kernels() -> Iterator[dict]:
    """Yields the milliseconds of tree attention by order; each was timed once."""
    timed = [row for row in rows("dyspec_blocks") if "seconds" in row]
    grown = {row["nodes"]: _least(row)[0] for row in timed if row["order"] == "as grown"}
    for row in timed:
        (kernel, xla), size = _least(row), row["nodes"]
        theirs, manual = PAPER[size, row["order"]]
        found = {"xla": xla / kernel, "grown": grown.get(size, kernel) / kernel}
        once = {name: Interval(value, value, value, 1.0) for name, value in found.items()}
        more = {"method": row["order"], "paper": f"{manual / theirs:.1f}"}
        yield row | more | {"kernel_ms": 1e3 * kernel, "xla_ms": 1e3 * xla, "over": once["xla"],
                            "reordered": once["grown"]}  # fmt: skip


def _least(row: dict) -> tuple[float, float]:
    """Returns the seconds of the fastest kernel, and of XLA's attention."""
    slow = row["seconds"]["Implementation()"]
    return min(each for name, each in row["seconds"].items() if name != "Implementation()"), slow


def _rounds() -> Iterator[dict]:
    """Yields the rounds of each text: their trees, and the blocks of their masks by order."""
    for row in rows("dyspec_rounds"):
        one = row | {"repeat": 0, "num_rounds": len(row["nodes"]), "tokens": sum(row["tokens"])}
        one |= {name: np.mean(row[name]) for name in ("nodes", "levels")}
        one["wide"] = sum(count >= row["beam"] for count in row["children"])
        one["deep"] = sum(count >= DEEPEST for count in row["levels"])
        yield one
        for name, counts in row["blocks"].items():
            yield one | {"method": name, "blocks": np.mean(counts)}


def _first_children() -> Iterator[dict]:
    """Yields the panels of DySpec's Fig. 2."""
    for row in rows("dyspec_fig2"):
        for name, correlation in row["correlation"].items():
            more = {"texts": row["count"] * len(row["kinds"].split(",")), "r": correlation}
            more["means"] = [mean for mean, _ in row["means"][name][0]]
            more["rank"] = rank_correlation([one for one in more["means"] if one is not None])
            more["density"], more["lowest"] = row["density"][name], more["means"][0]
            yield row | more | {"method": name, "repeat": 0, "text": 0}


def _forms() -> Iterator[dict]:
    """Yields the forms of token info, timed turn by turn."""
    found = matching(rows("lyanna"), {"bench": "lyanna.tables"})
    factors = {row["hot_tokens"]: np.array(row["ms"]) for row in found if row["form"] == "factors"}
    for row in found:
        over = np.median(np.array(row["ms"]) / factors[row["hot_tokens"]])
        more = {"median": np.median(row["ms"]), "over": over, "mib": row["bytes"] / 2**20}
        more["told"] = "two factors" if row["form"] == "factors" else f"table, {row['form']}"
        yield row | more | {"timings": len(row["ms"])}


KINDS: dict[str, Callable[[], Iterator[dict]]] = {
    "dyspec": _dyspec,
    "first children": _first_children,
    "blocks": _blocks,
    "kernels": _kernels,
    "rounds": _rounds,
    "trees": _trees,
    "verifiers": _verifiers,
    "rules": lambda: iter(rows("rsd_fig1")),
    "steps": _steps,
    "questions": partial(_questions, "token_recycling"),
    "spine": partial(_questions, "spine"),
    "pieces": _pieces,
    "heads": _heads,
    "ways": _ways,
    "heldout": _heldout,
    "forms": _forms,
}
"""Makers of the observations of each kind."""
