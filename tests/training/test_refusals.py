"""Commands of `jspec train`: bad inputs, each one sentence."""

import shlex

import pytest

SMALL = "--sequence 12 --batch-size 8 --warmup 1 --checkpoint-every 2 --heldout 0.3 --steps 2"
DRAFT = f"draft @text --keep-layers 0 --num-target-tokens 4 --sequences 6 {SMALL}"
DATA = "data --model @model --max-new-tokens 6 --shortest 2 --longest 8 --batch-size 4"
REFUSED = {
    "head": [
        ("", "no --kind was given; use one of eagle, lyanna, medusa, ngrams"),
        ("--kind block", "--kind is 'block'; use one of eagle"),
        ("--kind eagle --rank 3", "--rank does not apply to --kind eagle; leave it out"),
        ("--kind medusa --unroll 3", "--unroll does not apply to --kind medusa"),
        ("--kind ngrams --lr 3", "--lr does not apply to --kind ngrams"),
        ("--kind ngrams --begin-with x", "--begin-with does not apply to --kind ngr"),
    ],
    f"head --kind lyanna --model @model {SMALL} --unroll 2 --hot-tokens 100 --rank 4": [
        ("", "no text was given"),
        ("@tmp/absent.txt", "does not exist"),
        ("@text --sequence 31 --batch-size 0", "batch_size is 0"),
        ("@text --sequence 32", "target's context of 32"),
        ("@tmp/short.txt", "but one sequence needs 13"),
        ("@rows --lr nan", "learning_rate is nan"),
        ("@rows --unroll 0", "unroll is 0; use unroll >= 1"),
        ("@rows --hot-tokens 999", "hot_tokens is 999"),
        ("@rows --state-loss cubic", "state_loss is 'cubic'"),
        ("@rows --recipe @tmp/no.toml", "cannot be read"),
        ("@rows --begin-with jspec-7m/eagle", "eagle"),
        ("@tmp/foreign.jsonl", "line 2 has no tokens of a vocabulary of 270"),
    ],
    "head --kind ngrams @rows --model @model --sequence 8 --batch-size 5 --heldout 0": [
        ("--sequence 40", "sequence 40 and the token after it are more than the target's"),
        ("--out absent/table", "--out absent/table cannot be written; name a file in a"),
        ("--candidates 0", "--candidates is 0; pass an integer in 1 .. 16"),
        ("--candidates 17", "--candidates is 17; pass an integer in 1 .. 16"),
        ("--out @rows", "is one of the texts; name another file"),
    ],
    f"{DRAFT} --target @model": [
        ("--sequence 32", "more than the target's context of 32"),
        ("--num-target-tokens 0", "num_target_tokens is 0"),
        ("--sequences -1", "sequences is -1"),
        ("--seed -1", "seed is -1; use seed >= 0"),
        ("--out @rows", "rows.jsonl is a file; name a folder"),
        ("--keep-layers 1,0", "keep_layers is 1,0 and the target has layers 0 to"),
        ("--keep-layers a", "'a' is not an integer"),
        ("--keep-layers ''", "no --keep-layers was given; a draft model begins with some"),
        ("--target ''", "no --target was given"),
    ],
    f"draft --target @model --keep-layers 0 {SMALL}": [("", "no text was given")],
    DATA: [
        ("", "no text was given"),
        ("@text --count 0", "count 0 in batches of 4"),
        ("@text --max-new-tokens 30", "prompts of 8 tokens and 30 new ones"),
        ("@text --temperature warm", "--temperature is 'warm'"),
        ("@text --recipe no.toml", "was given with a recipe"),
    ],
}


@pytest.mark.parametrize("call", REFUSED)
def test_bad_input_is_one_sentence(folder, tmp_path, train, call):
    (tmp_path / "short.txt").write_text("Cats.")
    (tmp_path / "foreign.jsonl").write_text('{"tokens": [1]}\n{"tokens": [270]}\n')
    places = {
        "@model": folder / "model", "@text": folder / "text.txt", "@rows": folder / "rows.jsonl",
        "@tmp": tmp_path,
    }  # fmt: skip
    before = (folder / "rows.jsonl").read_bytes()
    wrong = []
    for row, said in REFUSED[call]:
        words = f"{call} --out @tmp/run {row}"
        for name, place in places.items():
            words = words.replace(name, str(place))
        code, output = train(*shlex.split(words))
        if code != 2 or said not in output or "Traceback" in output:
            wrong.append((row, code, output))
    assert not wrong, wrong
    assert {path.name for path in tmp_path.iterdir()} == {"short.txt", "foreign.jsonl"}
    assert (folder / "rows.jsonl").read_bytes() == before
