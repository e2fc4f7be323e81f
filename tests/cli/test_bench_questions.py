"""Questions of a bench: the file's errors by line and key, and an even choice over classes."""

import json
from collections import Counter

import pytest
import refusals

from jspec._validate.errors import InputError
from jspec.cli.bench import questions
from jspec.cli.bench.questions import Question, choose

GOOD = '{"question_id": 1, "category": "writing", "turns": ["Write.", "Again."]}'


def written(tmp_path, *lines):
    file = tmp_path / "question.jsonl"
    file.write_text("\n".join(lines))
    return file


def test_a_file_of_spec_bench_is_read(tmp_path):
    file = written(tmp_path, GOOD, "", '{"question_id": "b", "category": "qa", "turns": ["Who?"]}')
    first, second = questions.read(file)
    assert (first.name, first.category, first.turns) == ("1", "writing", ("Write.", "Again."))
    assert (second.name, second.category) == ("b", "qa")
    assert second.source == f"line 3 of {file}"
    along = questions.read(questions.SAMPLE)
    assert len(along) == 12 and set(Counter(one.category for one in along).values()) == {2}


WRONG = [
    ("{", "line 2 of .* is not JSON"),
    ("[1]", "line 2 of .*, which is not a JSON object"),
    ('{"category": "a", "turns": ["x"]}', "line 2 of .* has no question_id"),
    ('{"question_id": 1, "turns": ["x"]}', "line 2 of .* has no category"),
    ('{"question_id": 1, "category": "a"}', "line 2 of .* has no turns"),
    ('{"question_id": true, "category": "a", "turns": ["x"]}', "has question_id True"),
    ('{"question_id": 1, "category": "", "turns": ["x"]}', "has category ''; write a text"),
    ('{"question_id": 1, "category": "a", "turns": "x"}', "has turns 'x'; write a list"),
    ('{"question_id": 1, "category": "a", "turns": []}', r"has turns \[\]; write a list"),
    ('{"question_id": 1, "category": "a", "turns": [3]}', "has 3 among its turns"),
]


def test_a_wrong_file_or_line_is_named_with_its_key(tmp_path):
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    refusals.check([(written(tmp_path, "", ""), "holds no question")], questions.read)
    for line, said in WRONG:
        refusals.check([(written(tmp_path, GOOD, line), said)], questions.read)
    refusals.check(
        [
            (tmp_path / "absent", r"--questions .* cannot be read"),
            (tmp_path / "latin", "is not UTF-8"),
        ],
        questions.read,
    )


def speed(folder, part, *rows):
    lines = (
        {"question_id": f"{number:032x}", "category": kind, "messages": [
            {"role": "user", "content": text} for text in texts
        ]}
        for number, (kind, *texts) in enumerate(rows)
    )  # fmt: skip
    (folder / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_speed_bench_is_read_by_class_and_length_of_context(tmp_path):
    speed(tmp_path, "throughput_16k", ("low_entropy", "Long."))
    speed(tmp_path, "throughput_1k", ("low_entropy", "Short."), ("mixed", "Other."))
    speed(tmp_path, "qualitative", ("coding", "Write.", "Again."))
    found = questions.from_speed_bench(tmp_path)
    assert [(one.category, one.turns) for one in found] == [
        ("coding", ("Write.", "Again.")),
        ("1k low_entropy", ("Short.",)),
        ("1k mixed", ("Other.",)),
        ("16k low_entropy", ("Long.",)),
    ]
    assert found[3].source == f"line 1 of {tmp_path / 'throughput_16k.jsonl'}"


def test_speed_bench_that_is_not_prepared_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no qualitative\.jsonl .* prepare\.py"):
        questions.from_speed_bench(tmp_path)
    masked = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
    speed(tmp_path, "qualitative", ("coding", "Write."), ("math", masked))
    with pytest.raises(InputError, match=r"line 2 of .* has a placeholder .* prepare\.py"):
        questions.from_speed_bench(tmp_path)
    speed(tmp_path, "qualitative", ("coding", 3))
    with pytest.raises(InputError, match="has 3 among its turns"):
        questions.from_speed_bench(tmp_path)


def test_prompts_are_questions_of_one_class(tmp_path):
    file = written(tmp_path, "Once upon", "[5, 6]")
    found = questions.from_prompts(file)
    assert [one.turns for one in found] == [("Once upon",), ((5, 6),)]
    with pytest.raises(InputError, match=r"--prompts .* cannot be read"):
        questions.from_prompts(tmp_path / "absent")


def asked(**counts):
    return [
        Question(f"{kind}{place}", kind, ("?",), "")
        for kind, count in counts.items()
        for place in range(count)
    ]


def test_a_limit_is_kept_and_shared_evenly():
    everything = asked(a=8, b=1, c=5)
    for limit in (1, 2, 5, 7, 11, 14, None, 99):
        chosen = choose(everything, limit)
        assert len(chosen) == min(limit or 14, 14) and len(set(chosen)) == len(chosen)
        shares = Counter(one.category for one in chosen)
        # A class gets less than another only where it has no more.
        for kind, count in shares.items():
            has = sum(one.category == kind for one in everything)
            assert count == has or count >= max(shares.values()) - 1
        assert [one.category for one in chosen] == sorted(one.category for one in chosen)
    # Few are spread over classes and file.
    chosen = choose(asked(a=10, b=10, c=10, d=10), 2)
    assert [one.name for one in chosen] == ["a0", "c0"]
    assert [one.name for one in choose(asked(a=10), 3)] == ["a0", "a3", "a6"]
