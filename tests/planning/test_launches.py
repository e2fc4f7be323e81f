"""What a round launches, from XLA's own text of a program."""

from pathlib import Path

import pytest

from jspec.costs import devices
from jspec.planning import gpu_chips, launches
from jspec.planning.launches import Launches

STEPS = """\
001: kCopy         [source       | next=002 (1)] kCopy
002: kWhile        [prev=001 (1) | sink        ]
condition:
    003: kCustomKernel [source | sink] compare grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source       | next=006 (1)]
        004: kCustomKernel [source       | next=005 (1)] gemm grid: [1, 1, 1]
        005: kCopy         [prev=004 (1) | sink        ] kCopy
    006: kWhile [prev=000 (1) | next=009 (1)]
condition:
        No thunks.      body:
        007: kCustomKernel [source       | next=008 (1)] halve grid: [1, 1, 1]
        008: kCustomKernel [prev=007 (1) | sink        ] add grid: [1, 1, 1]
    009: kWhile [prev=006 (1) | next=012 (1)]
condition:
        010: kCustomKernel [source | sink] going grid: [1, 1, 1]
      body:
        011: kCustomKernel [source | sink] visit grid: [1, 1, 1]
    012: kConditional [prev=009 (1) | sink]
      false_branch:
        013: kCustomKernel [source | sink] nothing grid: [1, 1, 1]
      true_branch:
        014: kCustomKernel [source | next=015 (1)] learn grid: [1, 1, 1]
        015: kCopy [prev=014 (1) | sink] kCopy
"""
HLO = """\
  %copy.5 = bf16[2,1024]{1,0} copy(%p)
  %copy.15 = (f32[8,16]{1,0}, pred[4]) copy-start(%p)
  %while.6 = (s32[]) while(%t), backend_config={"known_trip_count":{"n":"5"}}
  %while.9 = (s32[]) while(%t), condition=%c, body=%b
"""
NAMES = {1: "copy.1", 2: "while.2", 5: "copy.5", 6: "while.6", 9: "while.9", 15: "copy.15"}


def written(folder: Path) -> Path:
    (folder / "m.thunk_sequence.txt").write_text("not the last of them")
    (folder / "m.thunk_sequence_after_thunk_passes.txt").write_text(STEPS)
    (folder / "m.sm_9.0a_gpu_after_optimizations.txt").write_text(HLO)
    entries = (
        f'thunk_info {{\n    profile_annotation: "{name}"\n    thunk_id: {number}\n  }}\n'
        for number, name in NAMES.items()
    )
    (folder / "m.thunk_metadata.txt").write_text("".join(entries))
    return folder


def test_launches_of_a_round_are_those_of_its_loops_and_graphs(tmp_path):
    assert launches.of_round(written(tmp_path)) == Launches(
        # its condition, two in a graph, five passes of two, a pass of two, the larger branch
        kernels=1 + 2 + 5 * 2 + 2 + 2,
        alone=1 + 5 * 2 + 2 + 2,
        graphs=1,
        # its condition, a pass more than the loop of unknown length has, the conditional
        waits=1 + 2 + 1,
        largest_copy=2 * 1024 * 2,
    )


def test_a_program_in_one_graph_launches_nothing_more(tmp_path):
    folder = written(tmp_path)
    inside = "".join(f"    {line}\n" for line in STEPS.splitlines())
    inside = inside.replace("    condition:", "condition:")
    inside = inside.replace("No thunks.", "No thunks.    ")
    (folder / "m.thunk_sequence_after_thunk_passes.txt").write_text(
        "000: kCommandBuffer [source | sink]\n" + inside
    )
    found = launches.of_round(folder)
    # The wait is that of its end.
    assert (found.kernels, found.launched, found.waits) == (17, 0, 0)


def test_what_is_no_such_program_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has 0 files"):
        launches.of_round(tmp_path)
    folder = written(tmp_path)
    (folder / "m.thunk_sequence_after_thunk_passes.txt").write_text(STEPS.splitlines()[0])
    with pytest.raises(ValueError, match="holds no loop"):
        launches.of_round(folder)


@pytest.mark.parametrize("name", gpu_chips.CHIPS)
def test_a_chip_is_described_by_its_data_sheet(name):
    text, sheet = gpu_chips.description(name), devices.find(name)
    assert f"device_memory_size: {sheet.memory}\n" in text
    assert f"memory_bandwidth: {sheet.bandwidth:.0f}\n" in text
    assert text.count("{") == text.count("}")
