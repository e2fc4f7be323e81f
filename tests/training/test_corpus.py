"""Documents and rows of chat data: what is held out, what they ask, and their order."""

import json

import numpy as np
import refusals

from jspec.training import chats, corpus, sequences


def test_holdout_follows_the_document_not_its_place(tmp_path):
    path = tmp_path / "stories.txt"
    path.write_text(corpus.END.join(f"Once upon a time there were {i} cats.\n" for i in range(100)))
    stories = corpus.CorpusSource("stories", path)
    first, second = corpus.load([stories]), corpus.load([stories])
    assert first == second
    assert len(first.heldout["stories"]) == 5
    assert not set(first.heldout["stories"]) & set(first.train["stories"])
    texts = [f"text {i}" for i in range(40)]
    kept, out = corpus.split(texts, 0.1)
    again, out_again = corpus.split(texts[::-1] + texts[:7], 0.1)
    assert set(out) == set(out_again)
    assert set(kept) == set(again)
    # A single document is trained on.
    assert corpus.split(["only"], 0.05) == (["only"], [])


def test_template_and_strip_of_json_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"q": "1+1?", "a": ["<<1+1=2>>2"]}) + "\n\n")
    assert corpus.read(corpus.CorpusSource("maths", path)) == ["1+1?\n<<1+1=2>>2"]
    # Separators of lines to Unicode are letters to JSON; some editors begin with a mark.
    path.write_text('\ufeff{"text": "a\u2028b\u0085c"}\n', encoding="utf-8")
    assert corpus.read(corpus.CorpusSource("web", path)) == ["a\u2028b\u0085c"]
    path.write_text(json.dumps({"q": "1+1?", "a": ["<<1+1=2>>2"]}) + "\n\n")
    source = corpus.CorpusSource("maths", path, "Q: {q} A: {a[0]}", "<<.*?>>")
    assert corpus.read(source) == ["Q: 1+1? A: 2"]


def test_templates_and_texts_that_do_not_fit_are_one_sentence(tmp_path):
    def read(name, content, template="{a}"):
        path = tmp_path / name
        path.write_bytes(content)
        corpus.read(corpus.CorpusSource("x", path, template))

    row = b'{"a": "x"}'
    field = r"names no field, as {question} or {turns\[0\]}"
    refusals.check([
        *((("a.jsonl", row, template), field) for template in ("{0}", "{}", "{a.__class__}")),
        *(
            (("a.jsonl", row, template), "line 1 does not fit the template")
            for template in ("{a", "{a.foo}", "{a:d}")
        ),
        (("a.txt", b""), "holds no text"),
        (("a.txt", b"\xff\xfe"), "is not UTF-8"),
        (("a.jsonl", b"{"), "line 1 is not JSON"),
        (("a.jsonl", b'{"b": 1}'), "has no field 'a'"),
    ], lambda given: read(*given))  # fmt: skip
    assert corpus.text_row('{"a": [["x", "y"]]}', "{a[0][1]}", "line 1") == "y"


def test_order_reads_epochs_by_weight_and_extends():
    long, short = (
        sequences.order({"a": 3, "b": 7}, {"a": 3, "b": 1}, count, seed=1) for count in (400, 80)
    )
    np.testing.assert_array_equal(long[:80], short)
    share = (long < 3).mean()
    assert abs(share - 0.75) < 3 * (0.75 * 0.25 / 400) ** 0.5
    assert sorted([row for row in long if row < 3][:3]) == [0, 1, 2]


def asked(fields, template=""):
    return json.loads(chats.row(json.dumps(fields), template, "line 1"))


def user(text):
    return [{"role": "user", "content": text}]


ANSWER = {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}


def test_a_row_asks():
    for fields, messages in (
        ({"instruction": "Add.", "input": "1 + 1", "output": "2"}, user("Add.\n\n1 + 1")),
        ({"instruction": "Add.", "instances": [{"input": "2", "output": "3"}]}, user("Add.\n\n2")),
        ({"instruction": "Hi", "instances": [{"input": "", "output": "x"}]}, user("Hi")),
        ({"id": "x", "question": " Why?\r\n", "answer": "So."}, user("Why?")),
        ({"text": "A task", "code": "x = 1"}, user("A task")),
        ({"messages": [SYSTEM, *user("a")], "prompt": "no"}, [SYSTEM, *user("a")]),
        ({"messages": (talk := [*user("a"), ANSWER, *user("c")])}, talk),
        ({"messages": [*user("a"), ANSWER]}, user("a")),
    ):
        assert asked(fields) == messages
    assert asked({"a": "x", "messages": user("b")}, "Say {a}.") == user("Say x.")


def test_a_row_that_asks_nothing_is_refused():
    refusals.check([
        (("no", ""), "line 1 is not JSON"),
        (("{}", ""), "line 1 asks nothing; give it one of messages, instruction"),
        (("[1]", ""), "asks nothing"),
        (('{"messages": []}', ""), "asks nothing"),
        (('{"a": "x"}', "{b}"), "line 1 has no field 'b'"),
    ], lambda given: chats.row(*given, "line 1"))  # fmt: skip
