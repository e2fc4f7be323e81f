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
    """0:363 00:135 1:95 000:62 2:61 01:47 10:43 4:30 3:28 02:28 001:22 03:20 20:19 5:18 100:16
    010:13 11:13 002:10 200:10 40:10 04:10 020:9 21:9 30:8 011:8 030:7 05:7 101:7 110:5 50:5 31:5
    400:5 003:5 22:5 13:4 004:4 300:4 12:4 013:3 25:3 040:3 021:3 103:3 014:3 210:3 51:3 031:3
    102:3 024:3 06:2 012:2 500:2 050:2 015:2 220:2 41:2 022:2 041:2 104:2 16:2 24:2 310:2 130:2""",
    """a:288 0:213 b:146 c:95 1:80 00:70 d:67 e:54 2:43 f:42 10:37 a0:36 01:34 000:33 3:33 4:33
    g:33 5:26 h:24 a1:24 i:19 20:17 j:16 02:16 100:15 010:15 a00:15 6:14 k:14 a2:14 40:12 7:11
    11:11 001:11 b0:11 a10:11 200:10 l:9 b1:9 30:9 21:9 03:9 04:9 a3:8 m:8 020:8 a000:7 n:7 50:7
    400:6 31:6 101:6 o:6 a01:5 12:5 b00:5 15:5 210:5 c2:5 a100:5 b10:5 p:5 51:5""",
    """a:522 b:354 c:265 d:221 e:195 f:142 0:106 g:97 1:80 h:71 i:59 a0:58 00:50 j:50 10:39 k:39
    3:35 l:33 m:28 2:27 a00:26 b0:25 n:24 a4:23 o:21 000:20 100:19 p:18 4:18 5:18 b1:17 01:16
    f0:15 11:13 a1:13 e0:13 b00:11 a01:11 a000:11 30:10 a3:9 20:9 b2:9 6:9 7:9 101:8 b10:8 a6:8
    b6:7 d1:7 31:7 b5:7 a40:7 010:7 50:7 c3:6 110:6 a10:6 c4:6 c5:6 f00:6 004:6 e7:5""",
    """a:683 b:548 c:404 d:317 e:240 f:192 g:154 h:135 i:118 j:104 k:90 l:75 0:67 m:64 n:55 o:46
    p:41 2:38 b0:37 b2:33 3:29 5:29 00:24 d0:22 a1:22 a2:20 1:19 a3:18 c0:17 c2:15 b00:15 e0:14
    b20:14 20:13 b1:12 a0:10 b3:10 d00:10 000:10 4:10 c1:9 a10:9 a5:9 10:9 a7:8 f0:8 c3:8 e1:8
    d2:8 c7:7 30:7 50:7 a20:7 d4:7 b000:7 e2:7 01:7 g1:6 e4:6 02:6 b01:6 a30:6 h1:6""",
    """a:773 b:659 c:500 d:477 e:432 f:409 g:386 h:341 i:309 j:241 k:207 l:168 m:141 n:123 o:103
    0:91 p:85 1:45 00:37 b0:29 a1:28 a2:23 2:23 a0:20 000:19 b3:19 10:19 c1:17 b6:17 d1:17 b5:16
    f1:16 g1:15 d2:15 01:15 a10:14 g2:14 j0:13 b00:12 i2:12 k0:12 i3:11 i4:11 l0:10 b1:10 k3:9
    20:9 100:8 d10:8 11:8 f10:8 a00:8 a20:8 g10:8 c10:8 a100:7 b2:6 c0:6 d0:6 d20:6 b000:6 e0:6
    010:6""",
    """a:952 b:905 c:857 d:857 e:762 f:762 g:690 h:690 i:625 j:577 k:490 l:461 m:408 n:371 o:347
    p:314 b1:28 d0:24 0:24 h0:22 a0:22 a4:21 f1:21 j1:18 f3:18 l0:18 b0:16 i6:15 a1:14 m2:13
    b10:12 d00:10 h00:9 f10:9 j10:9 a2:9 00:9 a00:9 c0:8 l00:7 e0:7 f0:7 a40:7 g0:7 b2:7 i0:7
    a10:7 j0:6 b00:6 a3:6 f30:6 k0:6 b100:5 m0:5 c1:5 d1:5 i60:5 e1:5 b3:5 n0:5 g1:5 h1:5 i1:5""",
)
"""The nodes of each class by falling rate: in so many of 1,000 rounds the text took that path
(SmolLM2-135M, 39 questions of Spec-Bench, counts shrunk by 16 of all classes)."""


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


def check(templates: Sequence[str]) -> int:
    """Returns the nodes of the largest template."""
    texts = isinstance(templates, tuple) and all(isinstance(one, str) for one in templates)
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
        most = max(2, *map(len, above))
        count = 1 + max(path[-1] for paths in new for path in paths)
        parents_of = np.zeros((len(trees), most), np.int32)
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
