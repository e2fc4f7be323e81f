"""Kernel launches of a round on a GPU, read from XLA's dump of a compiled program.

A round of a large model takes as long as its weights are read, if nothing else takes longer: a
kernel that the host launches by itself costs microseconds, and a wait of the host for the device
tens of them. XLA gathers kernels in CUDA graphs, which end at loops of unknown length and at
conditionals, where the host waits for a condition. So these are counted, of the program as it is.
"""

import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path

from jspec._xla import in_place
from jspec.round import phases

OPTIONS = {"xla_dump_hlo_as_text": True}
"""Options of the compiler alongside `xla_dump_to`, for what `of_rounds` reads."""
_GRAPH, _LOOP, _BRANCHES = "kCommandBuffer", "kWhile", "kConditional"
_COPIES = ("kCopy", "kDynamicSliceFusion")
_BESIDE, _ENDED = "kAsyncStart", "kAsyncDone"
_EXCHANGES = (
    "kAllGather", "kAllReduce", "kAllToAll", "kCollectiveBroadcast", "kCollectivePermute",
    "kRaggedAllToAll", "kReduceScatter", "kRecv", "kSend",
)  # fmt: skip


@dataclass(frozen=True)
class Launches:
    """Launches of a round at each width on a GPU, as if a round ran all of them."""

    kernels: int = 0
    """Kernels and copies that the device runs."""
    alone: int = 0
    """Kernels that the host launches one by one."""
    graphs: int = 0
    """CUDA graphs that the host launches."""
    waits: int = 0
    """Times that the host waits for a condition."""
    exchanges: int = 0
    """Kernels in which devices exchange something: sums, parts of arrays."""
    exchanged: int = 0
    """Bytes of the results of exchanges."""
    largest_exchange: int = 0
    """Bytes of the largest result."""
    largest_copy: int = 0
    """Bytes of the largest copy from one place of the device's memory to another."""

    @property
    def launched(self) -> int:
        """Launches by the host."""
        return self.alone + self.graphs

    def __add__(self, other: "Launches") -> "Launches":
        return Launches(
            *(
                max(a, b) if name in _LARGEST else a + b
                for name, a, b in zip(_NAMES, astuple(self), astuple(other), strict=True)
            )
        )

    def times(self, count: int) -> "Launches":
        """Returns the launches of `count` passes."""
        counts = zip(_NAMES, astuple(self), strict=True)
        return Launches(*(a if name in _LARGEST else count * a for name, a in counts))


_NAMES = tuple(field.name for field in fields(Launches))
_LARGEST = ("largest_exchange", "largest_copy")


@dataclass
class _Thunk:
    """A step of a program, with the steps inside it by what they are: a body, a branch."""

    name: str
    kind: str
    indent: int
    inside: str = ""
    """The program part that the next steps belong to."""
    parts: dict[str, list["_Thunk"]] = field(default_factory=dict)


def of_rounds(folder: Path) -> Launches:
    """Counts the launches of one pass of a program's outermost loop."""
    hlo = _text(folder, "*gpu_after_optimizations.txt")
    pattern = r'profile_annotation: "([^"]*)"\s+thunk_id: (\d+)'
    pairs = re.findall(pattern, _text(folder, "*thunk_metadata.txt"))
    names = {int(number): name for name, number in pairs}
    # It is not written where no graph was formed.
    last = list(folder.glob("*thunk_sequence_after_thunk_passes.txt"))
    steps = last[0].read_text() if last else _text(folder, "*thunk_sequence.txt")
    loop, in_graph = _first_loop(_parse(steps, names))
    if loop is None:
        raise ValueError("XLA's text of the program holds no loop")
    loops = {line[1]: line[0] for line in re.finditer(r"%?([\w.-]+) = .* while\(.*", hlo)}
    switch = rf"%?([\w.-]+) = .* conditional\(.*op_name=\"[^\"]*/{in_place.SWITCH}/[^/\"]+\""
    sizes = {
        name: _bytes(shape) for name, shape in re.findall(r"%?([\w.-]+) = (\(.*?\)|\S+) ", hlo)
    }
    lengths = _match(loops, r'known_trip_count":\{"n":"(\d+)"')
    switches = frozenset(line[1] for line in re.finditer(switch, hlo))
    kinds = _match(loops, rf'op_name="[^"]*/{phases.TURN}(\d+)/while"')
    inside = [step for part in loop.parts.values() for step in _all(part)]
    numbered = {kinds[step.name]: step for step in inside if step.name in kinds}
    turns = [numbered[number] for number in sorted(numbered)] or [loop]
    count = _Count(sizes, lengths, switches)
    return sum((count.of_pass(step, in_graph) for step in turns), Launches())


def count_instructions(hlo: str) -> int:
    r"""Returns the instructions of a program's text, those inside of fusions too."""
    return len(re.findall(r"^\s+(?:ROOT )?%?[\w.-]+ = ", hlo, re.MULTILINE))


def _all(steps: list[_Thunk]) -> Iterator[_Thunk]:
    """Yields the steps, and all that are inside of them."""
    for step in steps:
        yield step
        for part in step.parts.values():
            yield from _all(part)


def _match(loops: dict[str, str], pattern: str) -> dict[str, int]:
    """Returns the number that the line of each loop says, of those that say one."""
    matches = {name: re.search(pattern, line) for name, line in loops.items()}
    return {name: int(number[1]) for name, number in matches.items() if number}


@dataclass(frozen=True)
class _Count:
    """Facts about a program's steps, and the branches that are taken."""

    sizes: dict[str, int]
    """Bytes by name."""
    lengths: dict[str, int]
    """Passes of loops of known length."""
    switches: frozenset[str]
    """The conditionals that are `in_place.switch`, all of whose branches count."""

    def of_pass(self, loop: _Thunk, in_graph: bool) -> Launches:
        """Counts one pass of a loop, after which the host asks whether there is another."""
        parts = [step for part in loop.parts.values() for step in part]
        return self.of(parts, in_graph) + Launches(waits=not in_graph)

    def of(self, steps: list[_Thunk], in_graph: bool) -> Launches:
        """Returns the launches of steps, which may be part of a graph."""
        total = Launches()
        for step in steps:
            within = in_graph or step.kind == _GRAPH
            parts = {name: self.of(part, within) for name, part in step.parts.items()}
            wait = Launches(waits=not in_graph)
            if step.kind == _GRAPH:
                total += sum(parts.values(), Launches(graphs=not in_graph))
            elif step.kind == _LOOP:
                count = self.lengths.get(step.name)
                # Where its length is unknown it is asked for before each pass, and after the last.
                total += sum(parts.values(), Launches()).times(1 if count is None else count)
                total += wait.times(2 if count is None else 0)
            elif step.kind == _BRANCHES and step.name in self.switches:
                total += sum(parts.values(), wait)
            elif step.kind == _BRANCHES:
                largest = max(parts.values(), key=lambda part: part.kernels, default=Launches())
                total += wait + largest
            elif step.kind == _BESIDE:
                total += sum(parts.values(), Launches())
            elif step.kind != _ENDED:
                total += self._kernel(step, in_graph)
        return total

    def _kernel(self, step: _Thunk, in_graph: bool) -> Launches:
        size, launch = self.sizes.get(step.name, 0), Launches(kernels=1, alone=not in_graph)
        if step.kind in _COPIES:
            return replace(launch, largest_copy=size)
        if step.kind in _EXCHANGES:
            return replace(launch, exchanges=1, exchanged=size, largest_exchange=size)
        return launch


def _first_loop(steps: list[_Thunk], in_graph: bool = False) -> tuple[_Thunk | None, bool]:
    """Returns the outermost loop, and whether it is part of a graph."""
    for step in steps:
        if step.kind == _LOOP:
            return step, in_graph
        inside = [each for part in step.parts.values() for each in part]
        result = _first_loop(inside, in_graph or step.kind == _GRAPH)
        if result[0] is not None:
            return result
    return None, in_graph


def _parse(text: str, names: dict[int, str]) -> list[_Thunk]:
    """Returns the outermost steps of a program."""
    root = _Thunk("", "", -4)
    open_steps, last = [root], root
    for line in text.splitlines():
        if match := re.match(r"( *)(\d+): (k\w+)", line):
            indent = len(match[1])
            while open_steps[-1].indent >= indent:
                open_steps.pop()
            last = _Thunk(names.get(int(match[2]), ""), match[3], indent)
            above = open_steps[-1]
            above.parts.setdefault(above.inside, []).append(last)
            open_steps.append(last)
            continue
        # "condition:" is at the margin after its loop, the others two places in from theirs;
        # one behind another if a part is empty.
        for space, part in re.findall(r"( *)\b(condition|body|\w*branch\w*(?: \d+)?):", line):
            owners = [step for step in open_steps if step.indent == len(space) - 2]
            (last if part == "condition" else owners[-1] if owners else last).inside = part
    return root.parts.get("", [])


def _text(folder: Path, pattern: str) -> str:
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        raise ValueError(f"{folder} has {len(files)} files {pattern} of a compiled program, not 1")
    return files[0].read_text()


def _bytes(shape: str) -> int:
    """Returns the bytes of a shape as XLA writes it, such as "bf16[1,8]{1,0}", or of several."""
    total = 0
    for kind, sizes in re.findall(r"(pred|[a-z]+\d+\w*)\[([\d,]*)\]", shape):
        size = 1 if kind == "pred" else max(int(re.findall(r"\d+", kind)[0]) // 8, 1)
        for each in filter(None, sizes.split(",")):
            size *= int(each)
        total += size
    return total
