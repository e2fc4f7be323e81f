"""Self-distillation: rows follow from their number, runs resume, loops are cut."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import refusals
from tokenizers import Tokenizer

from jspec.training import corpus, distill

TEXTS = {
    "cats": [f"There were {i} grey cats. They slept all day." for i in range(9)],
    "dogs": [f"Here are {i} big dogs, and all of them bark." for i in range(5)],
}
RECIPE = distill.RowsRecipe(max_new_tokens=6, shortest=2, longest=5, temperatures=((0, 3), (1, 1)))
BYTES = [text.encode() for texts in TEXTS.values() for text in texts]


def encode(text):
    return [0, *text.encode()]


def rows(first, count, recipe=RECIPE):
    return list(distill.starts(TEXTS, {"cats": 3.0, "dogs": 1.0}, encode, recipe, first, count))


def test_rows_do_not_depend_on_where_a_run_begins_or_ends():
    whole = rows(0, 40)
    assert [start.row for start in whole] == list(range(40))
    assert whole[7:30] == rows(7, 30)
    # A short document gives half of itself at most.
    (start,) = distill.starts({"short": ["ab"]}, {"short": 1.0}, encode, RECIPE, 0, 1)
    assert start.prompt == [0]


def test_prompts_are_beginnings_and_later_pieces_of_the_documents():
    found = rows(0, 400)
    # The first rows of a class use up its documents; what follows may begin anywhere.
    assert all(start.prompt[0] == 0 for start in [r for r in found if r.label == "cats"][:9])
    assert sum(start.prompt[0] == 0 for start in found) < 100
    for start in found:
        ids = bytes(token for token in start.prompt if token)
        assert any(ids in text for text in BYTES)
        assert 2 <= len(start.prompt) <= 5
    share = np.mean([start.label == "cats" for start in found])
    assert share == pytest.approx(0.75, abs=0.1)
    share = np.mean([start.temperature == 0 for start in found])
    assert share == pytest.approx(0.75, abs=0.1)


def naive(tokens):
    """The first place where the last max(LOOP, p) tokens each equal the one p before."""
    for kept in range(1, len(tokens) + 1):
        for period in range(1, distill.PERIOD + 1):
            run = max(distill.LOOP, period)
            if kept >= period + run and all(
                tokens[j] == tokens[j - period] for j in range(kept - run, kept)
            ):
                return kept
    return len(tokens)


@pytest.mark.parametrize("period", [1, 3, 32, 50, 64, 65])
def test_a_loop_is_cut(period):
    generator = np.random.default_rng(period)
    start = generator.integers(0, 1000, 20)
    tokens = np.concatenate([start, np.tile(generator.integers(0, 1000, period), 200 // period)])
    kept = distill.count_unlooped(tokens)
    assert kept == naive(tokens.tolist())
    if period <= distill.PERIOD:
        assert kept == 20 + period + max(distill.LOOP, period)
    else:
        assert kept == len(tokens)
    # Text without a loop stays whole.
    tokens = generator.integers(0, 3, 300)
    assert distill.count_unlooped(tokens) == naive(tokens.tolist()) == 300
    assert distill.count_unlooped(tokens[:1]) == 1


def test_recipes_out_of_range_and_texts_without_tokens_are_refused():
    values = {"max_new_tokens": 6, "shortest": 2, "longest": 5}
    refusals.check([
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"shortest": 9}, "9 to 5 tokens do not exist"),
        ({"temperatures": ((-1.0, 1.0),)}, "temperature -1 with share 1"),
        ({"temperatures": ((1.0, 0.0),)}, "share 0"),
        ({"temperatures": ()}, "no temperature"),
        ({"seed": -1}, "seed is -1; pass an integer of at least 0"),
    ], lambda changes: distill.RowsRecipe(**values | changes))  # fmt: skip
    texts = {"pets": [" "]}, {"pets": 1}, str.split, distill.RowsRecipe(), 0, 1
    said = "a text of class pets has no tokens: ' '; leave it out"
    refusals.check([(texts, said)], lambda texts: list(distill.starts(*texts)))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A text to take prompts from."""
    path = tmp_path_factory.mktemp("distill") / "text.txt"
    path.write_text("<|endoftext|>".join(text for members in TEXTS.values() for text in members))
    return f"pets={path}"


@pytest.fixture
def run(folder, train):
    """`run(out, ...)`: the exit code and what was printed."""
    given = ["data", "--model", folder / "model", "--max-new-tokens", 6, "--shortest", 2]
    given += ["--longest", 8, "--batch-size", 4]
    return lambda out, *arguments: train(*given, "--out", out, *arguments)


def test_a_killed_run_goes_on_and_gives_the_same_rows(folder, text, run, tmp_path):
    code, output = run(tmp_path / "whole.jsonl", text, "--count", 10)
    assert code == 0, output
    lines = (tmp_path / "whole.jsonl").read_text().splitlines()
    assert len(lines) == 10
    words = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    held = set()
    for line in map(json.loads, lines):
        assert line["class"] == "pets" and line["finish"] in ("stop", "length", "loop")
        assert line["text"] == words.decode(line["tokens"])
        assert 1 <= line["prompt_tokens"] < len(line["tokens"]) <= line["prompt_tokens"] + 6
        assert line["holds_prompt"]
        held.add(line["temperature"])
    assert held <= {0.0, 0.7, 1.0} and len(held) > 1

    part = tmp_path / "part.jsonl"
    assert run(part, text, "--count", 5)[0] == 0
    with part.open("a") as file:
        file.write(lines[5][:20])  # killed while it wrote
    assert run(part, text, "--count", 10)[0] == 0
    assert part.read_text().splitlines() == lines
    code, output = run(part, text, "--count", 10)
    assert code == 0 and "holds 10 rows already" in output
    code, output = run(part, text, "--count", 12, "--seed", 1)
    assert code == 2 and "seed 0 -> 1" in output


def test_chats_are_asked_whole_in_the_model_s_template(folder, run, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(folder / "model", model)
    rows = [{"instruction": f"Say {i}"} for i in range(6)] + [{"instruction": "Long" * 30}]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (f"chat={tmp_path / 'chat.jsonl'}", "--chat", "--model", model, "--longest", 16)
    code, output = run(tmp_path / "rows.jsonl", *given)
    assert code == 2 and "no chat template" in output
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}:"
    (model / "chat_template.jinja").write_text(template)
    code, output = run(tmp_path / "rows.jsonl", *given, "--count", 4)
    assert code == 0 and "chat: 1 of" in output, output
    words = Tokenizer.from_file(str(model / "tokenizer.json"))
    for line in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines()):
        prompt = words.decode(line["tokens"][: line["prompt_tokens"]])
        assert re.fullmatch(r"<Say \d>:", prompt)
    code, output = run(tmp_path / "none.jsonl", *given[:-1], 2)
    assert code == 2 and "raise --longest" in output


def test_a_full_disk_keeps_what_is_whole_and_a_damaged_line_is_named(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    lines = distill.RowFile(path, {})
    lines.append([{"tokens": [1, 2]}])

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(lines.path), "open", full)
        with pytest.raises(RuntimeError, match=r"No space left on device.*first 1 rows are whole"):
            lines.append([{"tokens": [3]}])
    assert distill.RowFile(path, {}).tokens == 2
    path.write_text(path.read_text() + "{}\n")
    said = "line 2 is not a row that this command wrote; keep the 1 be"
    with pytest.raises(ValueError, match=said):
        distill.RowFile(path, {})


@pytest.mark.parametrize("content", ['{"precious": 1}', '{"tokens": [1, 2]}\n', "a diary\n"])
def test_the_file_of_another_is_left_alone(tmp_path, content):
    """Refuses a file without settings alongside it, whatever it looks like."""
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="is not a file of this command"):
        distill.RowFile(path, {})
    assert path.read_text() == content
    assert [file.name for file in tmp_path.iterdir()] == ["mine.json"]
    with pytest.raises(ValueError, match="is a folder; name a file"):
        distill.RowFile(tmp_path, {})


def test_held_out_documents_are_never_used(folder, text, run, tmp_path):
    """Every document has its own number, and the prompts are long enough to hold it."""
    out = tmp_path / "rows.jsonl"
    assert run(out, text, "--count", 26, "--shortest", 8)[0] == 0
    parts = corpus.load([corpus.CorpusSource("pets", Path(text.removeprefix("pets=")))])
    (kept,), (held,) = parts.train.values(), parts.heldout.values()
    assert held
    known = {tuple(re.findall(r"^\D+\d", text)) for text in held}
    words = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    for line in map(json.loads, out.read_text().splitlines()):
        prompt = words.decode(line["tokens"][: line["prompt_tokens"]])
        assert tuple(re.findall(r"^\D+\d", prompt)) not in known - {()}
        assert any(prompt.strip() in text for text in kept)
