"""The tables, verdicts and pictures of token_recycling.md."""

from collections.abc import Sequence

from benchmarks.recycling.settings import BREADTHS, DEPTHS
from benchmarks.recycling.shares import PAPER as SHARES
from benchmarks.results import svg
from benchmarks.results.questions import LINES, TR, Counts, counts, of_rows
from benchmarks.results.rendering import rows
from benchmarks.results.statistics import Estimate, mean
from benchmarks.results.tables import Verdict, holds, measured, table, verdicts

CHAT, TOY = "smollm2-135m", "jspec-7m"
NAMES = {CHAT: "SmolLM2-135M-Instruct", TOY: TOY}
SIZES = ("stories260k", "babyllama-target", TOY)
TRAIN_FREE = ("prompt lookup", "lookahead", "REST")
"""The paper's baselines that are not trained."""
PAPER = {
    "lookahead": (1.64, 1.66),
    "prompt lookup": (1.75, 1.39),
    "REST": (1.84, 2.08),
    "Medusa": (2.31, None),
    TR: (2.70, 2.93),
}
"""MAT of Vicuna-7B on Spec-Bench, and of Code Llama 7B on MBPP."""
SHUFFLED = 2.71


def table_1(one: Counts) -> str:
    """Tokens per round by class, with the paper's beside."""
    if not one.questions:
        return "No rows yet."
    kinds = one.kinds if len(one.kinds) > 1 else []
    header = ["method", *kinds, f"all {len(one.questions)}", "the paper, 7B", "the paper, MBPP"]
    lines = []
    for name in one.methods:
        by_kind = [one.mat(name, kind) for kind in kinds]
        lines.append([LINES[name], *by_kind, one.mat(name), *PAPER.get(name, (None, None))])
    return f"{table(header, lines)}\n\n{greedy(one.rows)}{fewer(one)}"


def fewer(one: Counts) -> str:
    """The methods that answered fewer questions, beside Token Recycling on the same ones."""
    there = {row["method"] for row in one.rows}
    lines = []
    for name in LINES:
        if name in there and name not in one.methods:
            both = Counts(one.rows, (TR, name))
            count = len(both.questions)
            lines.append([LINES[name], count, both.mat(name), both.mat(TR)])
    head = ("method", "questions", "tokens per round", "Token Recycling on the same")
    return f"\n\n{table(head, lines)}" if lines else ""


def greedy(found: Sequence[dict]) -> str:
    """How, where and when rows were counted."""
    return measured(found, f"Greedy, batch 1, {found[0]['new_tokens']} new tokens")


def sizes() -> str:
    """Tokens per round of each method by target."""
    found = {name: counts(name) for name in (*SIZES, CHAT)}
    found = {name: one for name, one in found.items() if one.questions}
    methods = [name for name in LINES if any(name in one.methods for one in found.values())]
    header = ["method", *(f"{name}, {len(one.questions)} texts" for name, one in found.items())]
    lines = [
        [LINES[m], *(one.mat(m) if m in one.methods else None for one in found.values())]
        for m in methods
    ]
    return table(header, lines)


def shuffled() -> tuple[Estimate, Estimate] | None:
    """Token Recycling's tokens per round task by task and shuffled, of the same questions."""
    found = rows("token_recycling", bench="recycling.counts", pair=TOY, method=TR)
    both = [[row for row in found if row.get("order") == name] for name in ("grouped", "shuffled")]
    asked = set.intersection(*({row["question"] for row in mine} for mine in both))
    if not asked:
        return None
    grouped, mixed = (of_rows(r for r in mine if r["question"] in asked) for mine in both)
    return grouped, mixed


def fig_3() -> dict[str, list[tuple[str, Estimate]]]:
    """The panels of Fig. 3: points by name."""
    found = rows("token_recycling", bench="recycling.counts", pair=TOY)
    found = [row for row in found if "order" not in row and row["kind"] != "mbpp"]

    def points(labels: dict[str, str]) -> list[tuple[str, Estimate]]:
        there = {label: [row for row in found if row["method"] == label] for label in labels}
        asked = [{row["question"] for row in mine} for mine in there.values() if mine]
        both = set.intersection(*asked) if asked else set()
        return [
            (labels[label], of_rows(row for row in mine if row["question"] in both))
            for label, mine in there.items()
            if mine and both
        ]

    return {
        "a": points({f"TR, {nodes} nodes": str(nodes) for nodes in BREADTHS}),
        "b": points({f"TR, {depth} levels": str(depth) for depth in DEPTHS}),
        "c": points({"TR, first": "First", "TR, cell by cell": "Cur", "TR, last": "Last"}),
    }


def fig_3_table() -> str:
    """All panels, one line a point."""
    named = {"a": "nodes, 6 levels", "b": "levels, 80 nodes", "c": "kept of equal tokens"}
    lines = [
        (f"({panel}) {named[panel]}", name, value, value.texts)
        for panel, found in fig_3().items()
        for name, value in found
    ]
    return table(("panel", "", "tokens per round", "texts"), lines)


def fig_4() -> dict[str, Estimate]:
    """Percent of a round by piece."""
    found = rows("token_recycling", bench="recycling", part="time")
    totals = [sum(row["pieces"].values()) for row in found]
    return {
        name: mean(
            [100 * row["pieces"][name] / total for row, total in zip(found, totals, strict=True)]
        )
        for name in (SHARES if found else ())
    }


def fig_4_table() -> str:
    """Percent of a round, with the paper's."""
    lines = [(name, f"{value}", SHARES[name]) for name, value in fig_4().items()]
    told = table(("piece", "percent of a round", "the paper"), lines)
    found = rows("token_recycling", bench="recycling", part="time")
    return f"{told}\n\n{len(found)} texts. {greedy(found)}" if found else told


POOLS = {
    "lookahead": "as in this library",
    "lookahead, cold": "an empty pool",
    "lookahead, pool alone": "its window not accepted",
    "lookahead, pool alone, cold": "both",
    "prompt lookup": "PLD",
}
"""Lookahead's variants, and what each changes."""


def lookahead() -> str:
    """Lookahead with one thing changed at a time, on the questions that all variants answered."""
    lines = []
    for name in (TOY, *SIZES[:2], CHAT):
        found = rows("token_recycling", bench="recycling.counts", pair=name)
        found = [row for row in found if "order" not in row and row["kind"] != "mbpp"]
        by = {method: [row for row in found if row["method"] == method] for method in POOLS}
        asked = [{row["question"] for row in mine} for mine in by.values() if mine]
        if not by["lookahead, cold"]:
            continue
        both = set.intersection(*asked)
        cells = [
            of_rows(row for row in mine if row["question"] in both) if mine else None
            for mine in by.values()
        ]
        lines.append((name, len(both), *cells))
    return table(("target", "texts", *POOLS.values()), lines)


def claims() -> str:
    """The table of verdicts."""
    chat = counts(CHAT)
    found = []
    if chat.questions:
        best = chat.best(TRAIN_FREE)
        lead, gain = chat.mat(TR) - chat.mat(best), chat.mat(TR) / chat.mat(best)
        number = f"{len(chat.questions)} questions"
        found += [
            Verdict(
                "MAT of a tree of 80 nodes",
                "2.70 (7B), 2.72 (13B), 2.63 (33B)",
                f"{chat.mat(TR)} (SmolLM2-135M, {number})",
                judged(chat.mat(TR) - 2.70),
            ),
            Verdict(
                "the highest MAT of the paper's methods without training",
                "2.70, then REST 1.84",
                f"{chat.mat(TR)}, then {LINES[best]} {chat.mat(best)}; paired {lead}",
                judged(lead),
            ),
            Verdict(
                "30% over the best of the paper's methods without training",
                "speed +33%, MAT +47%",
                f"MAT {gain.percent()} over {LINES[best]}",
                f"MAT: {as_much(gain - 1.3)}; speed: *not shown*",
            ),
        ]
        ranked = sorted(
            (name for name in TRAIN_FREE if name in chat.methods), key=chat.value, reverse=True
        )
        if "REST" in ranked:
            gap = chat.mat("REST") - chat.mat("lookahead")
            found.append(
                Verdict(
                    "REST is second and Lookahead last in MAT",
                    "1.84, PLD 1.75, 1.64",
                    ", ".join(f"{LINES[name]} {chat.mat(name)}" for name in ranked),
                    f"REST over Lookahead: {judged(gap)} ([why](#lookahead))",
                )
            )
        if "rag" in chat.kinds:
            gain = chat.mat(TR, "rag") / chat.mat("prompt lookup", "rag")
            found.append(
                Verdict(
                    "ahead of PLD on retrieval-augmented questions, by little",
                    "speed +2%",
                    f"MAT {gain.percent()}",
                    f"MAT: {judged(gain - 1)}; speed: *not shown*",
                )
            )
    code = counts(TOY, mbpp=True)
    if code.questions:
        best = code.best(TRAIN_FREE)
        lead = code.mat(TR) - code.mat(best)
        found.append(
            Verdict(
                "MBPP: the highest MAT of the paper's methods without training",
                "2.93, then REST 2.08",
                f"{code.mat(TR)}, then {LINES[best]} {code.mat(best)}; paired {lead} (jspec-7m)",
                judged(lead),
            )
        )
    leads = {}
    for name in SIZES:
        if TR in (one := counts(name)).methods:
            leads[name] = one.mat(TR) - one.mat(one.best(TRAIN_FREE))
    if len(leads) == len(SIZES):
        worst = min(leads.values(), key=lambda lead: lead.value / lead.error)
        found.append(
            Verdict(
                "the highest MAT of the paper's methods at every size of the target",
                "+0.86, +0.90, +0.82 over the next (7B, 13B, 33B)",
                ", ".join(f"{lead} ({name})" for name, lead in leads.items()),
                f"at the smallest lead: {judged(worst)}",
            )
        )
    trained = [
        (one.mat(TR) / one.mat("Medusa"), f"{heads}, {len(one.questions)} texts")
        for name, heads in ((CHAT, "SmolLM2, 4 heads"), (TOY, "jspec-7m, 3 heads"))
        if "Medusa" in (one := counts(name, methods=(TR, "Medusa"))).methods
    ]
    if trained:
        found.append(
            Verdict(
                "25% over Medusa, which is trained",
                "speed +23%, MAT +17%",
                "MAT " + ", ".join(f"{gain.percent()} ({heads})" for gain, heads in trained),
                f"ahead in MAT: {judged(trained[0][0] - 1)}; speed: *not shown*",
            )
        )
    if (both := shuffled()) is not None:
        change = both[1] - both[0]
        found.append(
            Verdict(
                "the order of questions matters by less than 1%",
                "MAT 2.70, shuffled 2.71",
                f"{both[0]}, shuffled {both[1]}; paired {change} (jspec-7m)",
                _no_change(change),
            )
        )
    panels = fig_3()
    if len(panels["a"]) == len(BREADTHS):
        rise, late = panels["a"][-1][1] - panels["a"][0][1], panels["a"][-1][1] - panels["a"][-2][1]
        found.append(
            Verdict(
                "Fig. 3 (a): more nodes, more MAT; beyond 80 they do not pay",
                "rises from 30 to 90 nodes (a figure alone, its axis from 2.2 to 2.8)",
                f"{panels['a'][0][1]} to {panels['a'][-1][1]}; 80 to 90: {late}",
                f"MAT: {judged(rise)}; speed: *not shown*",
            )
        )
    if len(panels["b"]) == len(DEPTHS):
        rise, late = panels["b"][2][1] - panels["b"][0][1], panels["b"][-1][1] - panels["b"][2][1]
        found.append(
            Verdict(
                "Fig. 3 (b): levels raise MAT at first, then little",
                "a figure alone, its axis from 2.67 to 2.73",
                f"4 to 6 levels: {rise}; 6 to 8: {late}; paired {rise - late}",
                judged(rise - late),
            )
        )
    if len(panels["c"]) == 3:
        first, cells = (panels["c"][2][1] - panels["c"][place][1] for place in (0, 1))
        found.append(
            Verdict(
                "Fig. 3 (c): the last of equal tokens gives the highest MAT, by little",
                "a figure alone, its axis from 2.68 to 2.77",
                f"over the first's {first}, over cell by cell {cells}",
                judged(min(first, cells, key=lambda found: found.value / found.error)),
            )
        )
    if shares := fig_4():
        found.append(
            Verdict(
                "Fig. 4: the forward takes nine tenths of a round",
                "90.1%",
                f"{shares['forward']}% (jspec-7m, two cores)",
                "*holds* on another device and model",
            )
        )
        late = shares["update"] - shares["retrieve"]
        found.append(
            Verdict(
                "Fig. 4: updating takes as long as retrieving",
                "1.5%, 1.6%",
                f"{shares['update']}%, {shares['retrieve']}%",
                _no_change(late),
            )
        )
    found += [
        Verdict("twice the speed of plain decoding", "2.03x (7B, A100)", "", NOT_SHOWN),
        Verdict(
            "the matrix takes less than 2 MB",
            "< 2 MB",
            "0.98 MiB of 32,000 tokens, 1.50 MiB of SmolLM2's 49,152, 3.91 MiB of 128,256",
            "*holds* up to 65,536 tokens",
        ),
    ]
    return verdicts(found)


NOT_SHOWN = (
    "*not shown*: on two cores a forward of 81 tokens costs many plain ones, "
    "on an A100 hardly more than one"
)


def judged(found: Estimate) -> str:
    """The verdict of a difference that should be above 0; of few texts none."""
    if found.texts < FEWEST:
        return f"*open*: {found.texts} questions are too few"
    return holds(found.ahead, found.behind)


def as_much(over: Estimate) -> str:
    """The verdict of a number that should be as large as the paper's, from what it is over that:
    it is where it is known to 5% and no difference is seen.
    """
    told = judged(over)
    if told.startswith("*open*") and 2 * over.error <= 0.05:
        return "*holds*: as much, within two standard errors"
    return told


FEWEST = 8
"""Texts that a verdict needs: of fewer, an error is hardly known."""


def _no_change(change: Estimate) -> str:
    if change.texts < FEWEST:
        return f"*open*: {change.texts} questions are too few"
    if change.ahead or change.behind:
        return "*does not hold*"
    return "*holds* within two standard errors"


def tables() -> dict[str, str]:
    """The marked regions of the page: the picture, where there is one, and the table."""
    drawn = pictures()

    def shown(said: str, *names: str) -> str:
        links = [
            f"![{ALT[name]}](pictures/token_recycling_{name}.svg)"
            for name in names
            if name in drawn
        ]
        return "\n\n".join([*links, said])

    return {
        "claims": claims(),
        "table_1": table_1(counts(CHAT)),
        "table_1_toy": shown(table_1(counts(TOY)), "table_1_toy"),
        "mbpp": table_1(counts(TOY, mbpp=True)),
        "sizes": sizes(),
        "fig_3": shown(fig_3_table(), "fig_3a", "fig_3b"),
        "fig_4": shown(fig_4_table(), "fig_4"),
        "lookahead": lookahead(),
    }


ALT = {
    "table_1_toy": "Tokens per round by class and method, jspec-7m",
    "fig_3a": "Tokens per round by nodes",
    "fig_3b": "Tokens per round by levels",
    "fig_4": "Percent of a round by piece",
}
"""What the pictures show, in words."""


def pictures() -> dict[str, str]:
    """The pictures beside the page."""
    found = {}
    for name, pair in (("table_1", CHAT), ("table_1_toy", TOY)):
        one = counts(pair)
        if one.questions:
            found[name] = svg.bars(
                f"Tokens per round by task, {NAMES[pair]}",
                [*one.kinds, "all"],
                {
                    LINES[method]: [*(one.mat(method, k) for k in one.kinds), one.mat(method)]
                    for method in one.methods
                },
                "tokens per round",
                {
                    LINES[method]: [*(None for _ in one.kinds), PAPER[method][0]]
                    for method in one.methods
                    if method in PAPER
                },
                least=1.0,
                subtitle=f"{len(one.questions)} questions; bars: one standard error",
            )
    panels = fig_3()
    if panels["a"] and panels["b"]:
        found["fig_3a"] = svg.lines(
            "Fig. 3 (a): tokens per round by nodes, 6 levels",
            {TOY: [(float(name), value) for name, value in panels["a"]]},
            "drafted nodes", "tokens per round", subtitle="band: one standard error",
        )  # fmt: skip
        found["fig_3b"] = svg.lines(
            "Fig. 3 (b): tokens per round by levels, 80 nodes",
            {TOY: [(float(name), value) for name, value in panels["b"]]},
            "levels", "tokens per round", subtitle="band: one standard error",
        )  # fmt: skip
    if shares := fig_4():
        found["fig_4"] = svg.bars(
            "Fig. 4: where the time of a round goes",
            list(shares),
            {"here": list(shares.values())},
            "percent of a round",
            {"here": [SHARES[name] for name in shares]},
        )
    return found
