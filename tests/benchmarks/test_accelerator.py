"""The accelerator's bench, with a model of two layers on whatever device there is."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import jspec
from benchmarks.accelerator import __main__ as command
from benchmarks.accelerator import (
    cells,
    forwards,
    hollow,
    methods,
    report,
    rounds,
    shapes,
    texts,
)
from benchmarks.ledger import Ledger
from jspec import models

TINY = shapes.SCALES["tiny"]
ABOUT = {"bench": "accelerator", "section": "some"}


def some_cells(path: Path | None = None, seconds: float = 60.0) -> cells.Cells:
    return cells.Cells(Ledger(path), ABOUT, time.monotonic() + seconds)


# Cells.


def test_a_row_that_the_file_holds_is_not_measured_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    some_cells(file).run(lambda: {"seconds": [1.0]}, batch=1)
    again = some_cells(file)
    again.run(lambda: pytest.fail("measured again"), batch=1)
    assert again.find(batch=1)[0]["seconds"] == [1.0]
    assert not again.left


@pytest.mark.slow
def test_a_failure_is_a_row_and_the_others_go_on():
    def fail():
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")

    section = some_cells()
    section.run(fail, batch=64)
    section.run(lambda: {"seconds": [1.0]}, batch=1)
    first, second = section.find()
    assert first["error"] == "RuntimeError: RESOURCE_EXHAUSTED: out of memory"
    assert second["seconds"] == [1.0]


def test_without_time_nothing_is_begun_and_what_is_left_is_said():
    section = some_cells(seconds=0.0)
    section.run(lambda: pytest.fail("begun"), way="scanned", batch=1)
    assert section.left == ["scanned, 1"]
    assert not section.find()


def test_a_cell_that_keeps_ending_the_process_is_left_out(tmp_path):
    file = tmp_path / "rows.jsonl"
    for _ in range(cells.MOST_TRIES):
        with pytest.raises(SystemExit):
            some_cells(file).run(sys.exit, batch=1)
    last = some_cells(file)
    last.run(lambda: pytest.fail("tried again"), batch=1)
    assert last.find()[0]["error"] == "it ended the process 3 times"


def test_the_fingerprint_follows_the_sources():
    assert cells.fingerprint() == cells.fingerprint()
    assert len(cells.fingerprint()) == 12


# What is measured.


def test_bytes_are_those_of_weights_and_cache():
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(TINY.params))
    cache = TINY.model.init_memory(1, TINY.capacity)
    capacity = sum(leaf.nbytes for leaf in jax.tree.leaves((cache.keys, cache.values)))
    # Of the table of embeddings per token reads its row.
    row = 4 * TINY.config.hidden_size
    table = row * TINY.config.vocab_size
    assert forwards.read_bytes(TINY.config, 4, 1, 1, TINY.capacity) == held - table + row + capacity


def test_seven_billion_weights_are_what_the_name_says():
    config = shapes.SCALES["7B"].config
    weights = forwards.read_bytes(config, 1, 0, 0, 0) + config.vocab_size * config.hidden_size
    assert weights == 6_738_415_616  # Llama-2-7B


@pytest.mark.slow
def test_forced_acceptance_emits_what_it_is_told():
    drafter = rounds.forced(TINY.config.vocab_size, TINY.nodes)
    for tokens in rounds.TOKENS_PER_ROUND:
        result = jspec.decode(
            TINY.model, TINY.params, [[1, 2, 3]], drafter=drafter,
            drafter_params=rounds.script(1, tokens), max_new_tokens=20,
            stopping=jspec.Stopping(max_tokens=4 * tokens),
        )  # fmt: skip
        assert result.stats.num_rounds.tolist() == [4]


def test_a_hollow_model_is_a_target_of_the_same_shapes():
    model = hollow.HollowModel(TINY.config, TINY.dtype)
    tokens, mask = np.zeros((2, 3), np.int32), np.ones((2, 3, 3), bool)
    cache = TINY.model.init_memory(2, TINY.capacity)
    real = jax.eval_shape(TINY.model.apply, TINY.params, tokens, tokens, mask, cache)
    empty = jax.eval_shape(model.apply, model.init(jax.random.key(0)), tokens, tokens, mask, cache)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), empty) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), real
    )


def test_the_shape_follows_the_memory():
    for memory, name in {None: "9M", 6 << 30: "1B", 18 << 30: "3B", 100 << 30: "7B"}.items():
        assert shapes.fitting(memory).name == name


def test_every_scale_has_room_for_its_rounds():
    for scale in shapes.SCALES.values():
        most = scale.past + max(rounds.TOKENS_PER_ROUND) * (scale.num_rounds + rounds.FEW)
        assert most < scale.capacity, scale.name
        assert scale.past + max(scale.widths) <= scale.config.context


def test_own_texts_make_prompts_without_the_shared_ones(monkeypatch):
    monkeypatch.setattr(texts, "SHARED", Path("nowhere"))
    prompts = texts.encoded(models.load("jspec-800k"), 10, methods.PROMPT_TOKENS)
    assert texts.source() == texts.OWN_TEXTS
    assert prompts.shape == (8, methods.PROMPT_TOKENS)


# The command.


def test_without_time_all_sections_are_left_and_said(tmp_path):
    left = command.run(list(command.SECTIONS), tmp_path / "rows.jsonl", 0, TINY)
    assert {each.split(":")[0] for each in left} == set(command.SECTIONS)


def test_a_model_that_is_not_there_is_skipped_with_a_sentence(tmp_path, capsys):
    absent = replace(TINY, models=(str(tmp_path / "absent"),))
    assert command.run(["methods", "parity"], tmp_path / "rows.jsonl", 60, absent) == []
    assert "skipped: absent" in " ".join(capsys.readouterr().out.split())


def test_the_tables_are_made_of_rows_alone(tmp_path, capsys):
    about = dict.fromkeys(report.SAME, "same") | {"kind": "some", "scale": "tiny"}
    ledger = Ledger(tmp_path / "rows.jsonl")
    ledger.add(**about, section="device", copy_bandwidth=1e9, bandwidth=1e9, settings={})
    for width, taken in ((1, 0.002), (4, 0.003)):
        ledger.add(**about, section="forwards", batch=1, width=width, seconds=[taken])
    ledger.add(**about, section="forwards", batch=2, width=1, error="full")
    for method, kind, tokens in (("plain", "plain", 1.0), ("forced", "3 tokens", 3.0)):
        timed = {kind: {"seconds": [0.004 * tokens**0.5], "tokens_per_round": tokens}}
        empty = {kind: {"seconds": [0.001], "tokens_per_round": tokens}}
        ledger.add(**about, section="rounds", method=method, batch=1, kinds=timed, hollow=empty)
    report.write(tmp_path / "rows.jsonl", tmp_path)
    text = (tmp_path / "summary.md").read_text("utf-8")
    assert text.startswith("### some, tiny") and "t(N)/t(1)" in capsys.readouterr().out
    assert "| 1 | 4 | 3.000 | 1.50 |" in text
    assert "| plain | 1 | plain | 4.000 | 1.00 | 25.0% |  |" in text
    assert "| forced | 1 | 3 tokens | 6.928 | 1.73 | 14.4% | 1.73x |" in text
    assert "- forwards, 2, 1: full" in text


@pytest.mark.slow
def test_every_section_has_rows_without_errors_and_a_second_run_measures_nothing(tmp_path):
    rows = tmp_path / "rows.jsonl"
    names = list(command.SECTIONS)
    assert command.run(names, rows, 600, TINY) == []
    found = [row for row in Ledger(rows).rows if cells.BEGUN not in row]
    assert {row["section"] for row in found} == set(names)
    assert not [row["error"] for row in found if "error" in row]
    for row in found:
        assert row.keys() >= {"date", "device", "jax", "python", "kind", "platform", "sources"}
    assert all(row["finite"] for row in found if row["section"] == "forwards")
    timed = {row["method"]: row["kinds"] for row in found if row["section"] == "rounds"}
    assert list(timed) == ["plain", "forced", "prompt_lookup"] and list(timed["plain"]) == ["plain"]
    assert [one["tokens_per_round"] for one in timed["forced"].values()] == [2.0, 3.0, 4.0, 5.0]
    # The 800k model has no trained head: `eagle` is skipped, and is not a row.
    assert [row["method"] for row in found if row["section"] == "methods"] == ["prompt_lookup"]
    assert next(row for row in found if row["section"] == "methods")["differing"] == 0
    assert next(row for row in found if row["section"] == "parity")["first_divergence"] == []
    before = rows.read_text("utf-8")
    assert command.run(["device", "forwards"], rows, 60, TINY) == []
    assert rows.read_text("utf-8") == before
