"""The trees of `Spine`: six templates, and the arrays from which a draft reads them.

A node is named by its path: letters for the tokens that are copied from the text (a: one, b: two,
..), then a digit for each branch step, the rank of a candidate after the node above. `b01` is what
ranks second after what ranks first after two copied tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from re import fullmatch

import numpy as np
from jaxtyping import Int

from jspec._validate.errors import InputError
from jspec.types import NO_PARENT

MATCHES = (1, 2, 3, 5, 9)
"""The shortest match with which each class of rounds begins; the first class has no match."""
COPY = -1
"""A step of a path to the next copied token, and not to a candidate's rank."""
Path = tuple[int, ...]

TEMPLATES = (
    """0:405 00:171 1:90 000:77 2:69 01:55 3:50 10:42 001:28 20:27 010:24 03:24 02:22 4:21 100:17
    5:16 11:14 30:14 002:12 21:12 05:11 200:11 020:10 40:9 04:8 101:8 030:8 33:7 003:7 06:7 011:7
    31:7 110:7 330:6 22:6 12:5 50:5 201:5 210:5 040:5 005:5 07:5 220:4 032:4 034:4 400:4 050:4
    300:4 41:4 14:4 111:3 004:3 120:3 202:3 310:3 301:3 32:3 070:3 012:3 13:3 6:2 7:2 006:2""",
    """0:275 a:265 b:133 1:107 00:96 c:91 d:58 2:51 10:49 01:47 a0:47 e:42 000:42 3:39 f:36 100:29
    a00:28 20:24 g:23 010:23 4:21 001:20 h:19 02:19 a1:18 11:16 30:16 i:14 5:13 6:13 j:12 a000:12
    04:12 k:11 b0:11 03:11 020:11 a2:10 200:10 l:10 m:9 n:9 110:9 40:8 c0:8 101:8 21:8 o:8 b1:7
    06:7 p:7 a20:7 a5:7 b00:7 d0:7 201:6 002:6 7:6 50:6 300:6 c1:6 14:6 13:6""",
    """a:441 b:295 0:238 c:210 d:148 e:113 00:111 f:100 g:79 1:75 h:75 000:63 i:59 a0:51 j:48 k:41
    01:39 l:38 m:36 n:36 a00:34 o:33 p:31 10:29 a1:26 3:24 b1:24 c0:17 5:17 100:16 2:15 a000:14
    11:14 d1:14 h0:12 02:12 4:12 003:12 010:12 001:12 b0:11 a2:11 7:11 c1:10 p0:10 a4:10 c00:10
    06:10 b4:10 b2:10 h00:9 c3:9 a20:9 b00:8 110:8 03:8 b11:7 b110:7 e1:7 011:7 d0:7 p2:7 d10:7""",
    """a:544 b:371 c:305 d:201 e:172 f:141 0:136 g:120 h:107 i:95 1:89 a0:81 00:80 j:77 k:67 l:57
    m:52 n:52 10:47 a00:45 o:44 p:42 000:40 4:38 c0:34 a000:27 3:26 100:25 a1:17 40:16 c00:16
    p0:15 c1:14 a3:14 a30:14 i1:13 c2:12 11:11 a01:11 e0:11 001:11 01:11 30:10 b1:10 b0:10 101:10
    d1:10 a2:9 d0:9 c20:9 02:9 e00:9 5:9 p1:9 03:8 f0:8 6:8 c10:8 7:8 a4:8 b4:7 b2:7 p2:7""",
    """a:513 b:328 c:288 d:206 e:166 0:151 f:145 g:126 h:107 i:95 1:85 j:75 k:69 00:69 l:60 m:56
    n:56 2:53 o:52 p:50 10:37 a2:32 000:32 c0:32 a0:30 a20:25 p0:21 20:20 01:19 a00:18 100:18
    d1:16 001:14 c00:14 c4:12 c3:12 3:12 04:12 11:11 p00:11 a1:11 21:11 i1:10 a200:9 a201:9 a000:9
    p000:9 p1:8 200:8 d10:8 b1:8 b0:8 010:8 02:8 d0:7 i0:7 c1:7 p2:7 c30:7 03:6 040:6 4:6 101:6""",
    """a:605 b:420 c:351 d:266 e:212 f:184 0:172 g:159 h:147 i:131 j:110 k:102 l:94 m:90 n:90 o:83
    p:81 00:77 a0:77 a00:50 1:43 000:34 a1:33 c0:30 a000:27 01:24 2:24 p0:22 d1:21 10:20 p1:19
    3:18 b3:18 001:17 e0:14 c6:14 c60:14 c600:14 c00:14 p2:13 d4:11 d40:11 e00:11 p10:11 b1:11
    b0:11 d10:11 p00:10 010:10 20:10 100:10 p20:10 02:10 b30:10 d0:9 4:9 c1:9 a2:9 03:8 f0:8
    p000:8 i1:8 e000:8""",
)
"""The nodes of each class by falling rate: in so many of 1,000 rounds the text took that path.

Of SmolLM2-135M, 48 questions of Spec-Bench: `python -m benchmarks.spine_templates --model
smollm2-135m --questions question.jsonl --count 8 --out FILE`, 2026-11-28.
"""


def read(template: str) -> Mapping[Path, int]:
    """Returns the rates of a template's nodes by their paths."""
    rates: dict[Path, int] = {(): (last := 1000)}
    for entry in template.split():
        if not fullmatch(r"(?=[a-z0-9])[a-z]?[0-9]*:[0-9]{1,4}", entry):
            raise InputError(
                f"a template has the node {entry!r:.40}; give a letter for its copied tokens, its "
                "ranks and its rate, such as b01:24"
            )
        name, rate = entry.split(":")
        copies = ord(name[0]) - ord("a") + 1 if name[0].isalpha() else 0
        path = (COPY,) * copies + tuple(map(int, name[copies > 0 :]))
        if path[:-1] not in rates:
            raise InputError(
                f"a template has the node {entry!r} and not the one above it, or later; put that "
                "before it"
            )
        if path in rates or int(rate) > last:
            raise InputError(
                f"a template has the node {entry!r} twice, or behind one of a smaller rate; list "
                "each once, by falling rates of 1,000 at most"
            )
        rates[path] = last = int(rate)
    return rates


def name_node(path: Path) -> str:
    """Returns a path's name in a template."""
    copies = path.count(COPY)
    return (chr(ord("a") + copies - 1) if copies else "") + "".join(map(str, path[copies:]))


def check(templates: Sequence[str]) -> int:
    """Returns the nodes of the largest template."""
    texts = isinstance(templates, tuple) and all(isinstance(text, str) for text in templates)
    if not texts or len(templates) != len(MATCHES) + 1:
        raise InputError(
            f"templates is {templates!r:.60}; give a tuple of {len(MATCHES) + 1} texts, for no "
            f"match and for matches of {', '.join(map(str, MATCHES))} tokens and more"
        )
    nodes = [len(read(template)) - 1 for template in templates]
    if not all(nodes):
        raise InputError(f"template {nodes.index(0)} has no node; give it one, such as 0:300")
    return max(nodes)


@dataclass(frozen=True)
class Plan:
    """Templates as one table, a line for each class, of several parts side by side.

    The parts are: parents, rates and depths of the nodes, and their places among the copied tokens
    (-1: they are not copied). Then two for each pass: the nodes that get children, and which of
    their ranked candidates each node of the tree is (-1: it is one of another pass).
    """

    table: Int[np.ndarray, "6 L"]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    """The candidates that are ranked after a node, in each pass."""
    depth: int
    width: int


@lru_cache(maxsize=64)
def plan(templates: Sequence[str], nodes: int, passes: int, max_depth: int) -> Plan:
    """Returns the first nodes of each template, of so many branch steps and levels at most."""
    trees = []
    for rates in map(read, templates):
        shallow = [p for p in rates if _branches(p) <= passes and len(p) <= max_depth]
        trees.append({path: rates[path] for path in shallow[: nodes + 1]})
    number = [{path: node for node, path in enumerate(paths)} for paths in trees]

    def of_nodes(value, absent: int) -> np.ndarray:
        """Where a template has fewer nodes, those left over are absent children of the root."""
        lines = np.full((len(trees), nodes + 1), absent, np.int32)
        for line, paths, place in zip(lines, trees, number, strict=True):
            line[: len(paths)] = [value(path, place, rate) for path, rate in paths.items()]
        return lines

    parents = of_nodes(lambda path, place, _: place[path[:-1]] if path else NO_PARENT, 0)
    parts = [
        parents,
        of_nodes(lambda path, place, rate: rate, 0),
        of_nodes(lambda path, *_: len(path), 0),
        of_nodes(lambda path, *_: len(path) - 1 if path[-1:] == (COPY,) else -1, -1),
    ]
    ranks = []
    for order in range(1, 1 + max(_branches(path) for paths in trees for path in paths)):
        new = [[p for p in paths if p[-1:] != (COPY,) and _branches(p) == order] for paths in trees]
        above = [list(dict.fromkeys(path[:-1] for path in paths)) for paths in new]
        # Of one line XLA makes a slice, which is read again wherever it is used.
        max_parents = max(2, *map(len, above))
        count = 1 + max(path[-1] for paths in new for path in paths)
        parents_of = np.zeros((len(trees), max_parents), np.int32)
        pick = np.full((len(trees), nodes + 1), -1, np.int32)
        for row, place in enumerate(number):
            parents_of[row, : len(above[row])] = [place[path] for path in above[row]]
            for path in new[row]:
                pick[row, place[path]] = above[row].index(path[:-1]) * count + path[-1]
        parts += [parents_of, pick]
        ranks.append(count)
    return Plan(
        table=np.concatenate(parts, axis=1),
        sizes=tuple(part.shape[1] for part in parts),
        ranks=tuple(ranks),
        depth=max(len(path) for paths in trees for path in paths),
        width=max(int(np.bincount(line[1:]).max()) for line in parents),
    )


def _branches(path: Path) -> int:
    return sum(step != COPY for step in path)
