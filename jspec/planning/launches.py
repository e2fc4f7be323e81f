"""What a GPU is asked to launch in a round, read from what XLA writes of a compiled program.

A round of a large model takes as long as its weights are read, if nothing else takes longer: a
kernel that the host launches by itself costs microseconds, and a wait of the host for the device
tens of them. XLA gathers kernels in CUDA graphs, which end at loops of unknown length and at
conditionals, where the host waits for a condition. So these are counted, of the program as it is.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

OPTIONS = {"xla_dump_hlo_as_text": True}
"""Options of the compiler beside `xla_dump_to`, for what `of_round` reads."""
_GRAPH, _LOOP, _BRANCHES = "kCommandBuffer", "kWhile", "kConditional"
_COPIES = ("kCopy", "kDynamicSliceFusion")


@dataclass(frozen=True)
class Launches:
    """Of one round, as far as the program says it.

    A loop of known length counts as often as it runs, any other once; of the branches of a
    conditional the one that has most counts.
    """

    kernels: int = 0
    """Kernels and copies that the device runs."""
    alone: int = 0
    """Those that the host launches one by one."""
    graphs: int = 0
    """CUDA graphs that the host launches."""
    waits: int = 0
    """Times that the host waits for a condition."""
    largest_copy: int = 0
    """Bytes of the largest copy from one place of the device's memory to another."""

    @property
    def launched(self) -> int:
        """What the host launches."""
        return self.alone + self.graphs

    def __add__(self, other: "Launches") -> "Launches":
        return Launches(
            kernels=self.kernels + other.kernels,
            alone=self.alone + other.alone,
            graphs=self.graphs + other.graphs,
            waits=self.waits + other.waits,
            largest_copy=max(self.largest_copy, other.largest_copy),
        )

    def times(self, count: int) -> "Launches":
        """Of so many passes."""
        return Launches(
            *(count * part for part in (self.kernels, self.alone, self.graphs, self.waits)),
            largest_copy=self.largest_copy,
        )


@dataclass
class _Thunk:
    """A step of a program, with the steps inside it by what they are: a body, a branch."""

    name: str
    kind: str
    indent: int
    inside: str = ""
    """What the steps that are read next belong to."""
    parts: dict[str, list["_Thunk"]] = field(default_factory=dict)


def of_round(folder: Path) -> Launches:
    """The launches of a pass of a program's outermost loop.

    Args:
        folder: that XLA wrote to, of one program, by `xla_dump_to` and `OPTIONS`.

    Raises:
        ValueError: if it holds no such program: the format is XLA's own, and may change.
    """
    hlo = _text(folder, "*gpu_after_optimizations.txt")
    named = r'profile_annotation: "([^"]*)"\s+thunk_id: (\d+)'
    found = re.findall(named, _text(folder, "*thunk_metadata.txt"))
    names = {int(number): name for name, number in found}
    # It is not written where no graph was formed.
    last = list(folder.glob("*thunk_sequence_after_thunk_passes.txt"))
    steps = last[0].read_text() if last else _text(folder, "*thunk_sequence.txt")
    loop, in_graph = _first_loop(_parsed(steps, names))
    if loop is None:
        raise ValueError("XLA's text of the program holds no loop")
    sizes = {
        name: _bytes(shape) for name, shape in re.findall(r"%?([\w.-]+) = (\(.*?\)|\S+) ", hlo)
    }
    lengths = {
        name: int(count)
        for name, count in re.findall(
            r'%?([\w.-]+) = .* while\(.*known_trip_count":\{"n":"(\d+)"', hlo
        )
    }
    parts = [step for part in loop.parts.values() for step in part]
    return _of(parts, sizes, lengths, in_graph) + Launches(waits=not in_graph)


def _of(
    steps: list[_Thunk], sizes: dict[str, int], lengths: dict[str, int], in_graph: bool
) -> Launches:
    found = Launches()
    for step in steps:
        parts = [
            _of(part, sizes, lengths, in_graph or step.kind == _GRAPH)
            for part in step.parts.values()
        ]
        wait = Launches(waits=not in_graph)
        if step.kind == _GRAPH:
            found += sum(parts, Launches(graphs=not in_graph))
        elif step.kind == _LOOP:
            count = lengths.get(step.name)
            # Where its length is unknown it is asked for before each pass, and after the last.
            found += sum(parts, Launches()).times(1 if count is None else count)
            found += wait.times(2 if count is None else 0)
        elif step.kind == _BRANCHES:
            found += wait + max(parts, key=lambda part: part.kernels, default=Launches())
        else:
            copied = sizes.get(step.name, 0) if step.kind in _COPIES else 0
            found += Launches(kernels=1, alone=not in_graph, largest_copy=copied)
    return found


def _first_loop(steps: list[_Thunk], in_graph: bool = False) -> tuple[_Thunk | None, bool]:
    """The outermost loop, and whether it is part of a graph."""
    for step in steps:
        if step.kind == _LOOP:
            return step, in_graph
        inside = [each for part in step.parts.values() for each in part]
        found = _first_loop(inside, in_graph or step.kind == _GRAPH)
        if found[0] is not None:
            return found
    return None, in_graph


def _parsed(text: str, names: dict[int, str]) -> list[_Thunk]:
    """The outermost steps of a program."""
    root = _Thunk("", "", -4)
    open_steps, last = [root], root
    for line in text.splitlines():
        if found := re.match(r"( *)(\d+): (k\w+)", line):
            indent = len(found[1])
            while open_steps[-1].indent >= indent:
                open_steps.pop()
            last = _Thunk(names.get(int(found[2]), ""), found[3], indent)
            above = open_steps[-1]
            above.parts.setdefault(above.inside, []).append(last)
            open_steps.append(last)
            continue
        # "condition:" stands at the margin behind its loop, the others two places in from theirs;
        # one behind another if a part is empty.
        for space, part in re.findall(r"( *)\b(condition|body|\w*branch\w*(?: \d+)?):", line):
            owners = [step for step in open_steps if step.indent == len(space) - 2]
            (last if part == "condition" else owners[-1] if owners else last).inside = part
    return root.parts.get("", [])


def _text(folder: Path, pattern: str) -> str:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise ValueError(f"{folder} has {len(found)} files {pattern} of a compiled program, not 1")
    return found[0].read_text()


def _bytes(shape: str) -> int:
    """The bytes of a shape as XLA writes it, such as "bf16[1,8]{1,0}", or of several."""
    total = 0
    for kind, sizes in re.findall(r"(pred|[a-z]+\d+\w*)\[([\d,]*)\]", shape):
        size = 1 if kind == "pred" else max(int(re.findall(r"\d+", kind)[0]) // 8, 1)
        for each in filter(None, sizes.split(",")):
            size *= int(each)
        total += size
    return total
