"""Commands and bad inputs: one sentence each, exit code 2, nothing printed and nothing written."""

import os
import re
import shlex
from pathlib import Path

import pytest

from jspec.cli.gone import GONE, replacement

SCHEMES = "(choose one of auto, speculative_decoding, "
REFUSED = {
    "generate Once --model @folder": [
        ("--methd x", "--method"),
        ("--speculative-config '{\"max\": 3}' --json", "'max' is unknown"),
        ("--speculative-config '{\"k\": 999}'", "k is 999; pass an integer in 1 .. 290"),
        (
            '--speculative-config \'{"method": "token_recycling", "template": [[8]]}\' --json',
            "rank 8 and the matrix holds",
        ),
        ("--speculative-config '{\"widths\": [3, 0]}'", "give rising numbers of drafted nodes"),
        ("--max-new-tokens 0 --json", "--max-new-tokens is 0; pass at least 1"),
        ("--drop oldest", "--drop is oldest, and turns are dropped of a conversation"),
        ("--max-new-tokens x", "'--max-new-tokens': 'x' is not an integer"),
        ("--temperature nan", "temperature is nan"),
        ("--temperature warm --json", "'warm' is not a number"),
        ("--temperature 1e9", "temperature is 1000000000.0; pass a number x with 0 <= x <= 1000"),
        ("--top-p 1.5", "top_p is 1.5; pass a number x with 1e-06 <= x <= 1, 1 is off"),
        ("--dtype float7 --json", "'float7' is unknown; use one of"),
        ("--draft-model x --method suffix", f"uses none; leave it out {SCHEMES}"),
        ("--method speculative_decoding", "_decoding needs a draft model and none was given"),
        ("--batch-file x", "a prompt and --batch-file were both given"),
        ("--model /absent/folder --json", "/absent/folder is not a folder"),
        ("--model .", "no config.json"),
        ("--model @damaged", "model.safetensors"),
        ("--chat", "no chat template"),
        ("--lora @tmp", "has no adapter_config.json"),
        ("--memory @tmp/m --method prompt_lookup", "keeps nothing that outlives a call"),
        ("--memory @tmp/m --method auto", "(methods token_recycling and suffix)"),
        ("--memory @tmp --method suffix", "cannot be written; give a file in a folder that is t"),
        ("--memory @tmp/no/file --method suffix", "cannot be written"),
        ("--memory @line --method suffix", "cannot be read as a drafter's memory"),
        ("--method rest", "method rest needs datastore...jspec datastore build"),
    ],
    "generate --model @folder": [
        ("''", "the prompt is empty"),
        (f"'{'猫' * 99}'", "tokens and the model's context is 64; shorten"),
        (f"--json --batch-file '@file:good|{'猫' * 99}'", "line 2 of ... context is 64; shorten"),
        ("--json --batch-file '@file:good||good'", "line 2 of ... is empty"),
        (
            "--json --batch-file '@file:good|[1, 290]'",
            "line 2 of ... token id 290, outside the vocabulary of 290; use ids 0 .. 289",
        ),
    ],
    "generate Once --json --max-new-tokens 12 --model @folder --draft-model @draft": [
        ("--method rsd_s --speculative-config '{\"beam\": 291}'", "beam is 291; pass an integer"),
        ("--method dyspec --speculative-config '{\"threshold\": 1}'", "threshold is 1; pass a nu"),
        (
            "--method sequoia --speculative-config '{\"acceptance\": [0.9, 0.9]}'",
            "acceptance sums to 1.8",
        ),
    ],
    # Of the answer's form: before anything is loaded.
    "generate Once --model nowhere": [
        ("--repetition-penalty 0", "repetition_penalty is 0.0; pass a number x with 1e-06"),
        ("--logit-bias 5", "--logit-bias is '5'; pass a JSON object"),
        ("--logit-bias '{\"5\": NaN}'", "pass a JSON object of token ids and numbers"),
        ("--json-schema nowhere.json", "'nowhere.json' cannot be read"),
        ("--json-schema {", "--json-schema is not JSON"),
        ("--regex a --choice b", "--regex and --choice were given"),
        ("--choice ''", "an empty text was given"),
        ("--choice a --ignore-eos", "a grammar and --ignore-eos were given"),
        ("--logprobs 3", "--logprobs is written with --json alone"),
        ("--logprobs -1 --json", "logprobs is -1; pass an integer"),
        ("-n 0", "-n is 0; pass an integer in 1 .. 4096"),
        *(
            (f"{option} 'a\udcff'", "is not UTF-8; encode it so")  # a byte, as Python has it
            for option in ("--stop", "--choice", "--system", "--regex", "--speculative-config")
        ),
    ],
    "chat --model @folder": [("", "no chat template")],
    "bench --model @folder --questions @questions --out @tmp/out --methods suffix": [
        ("--methods sufix", "'sufix' is unknown; did you mean suffix?"),
        ("--methods ,", "--methods is ','; name one or more of"),
        ("--peers all", "run `python -m benchmarks.peers` in a checkout"),
        ("--speculative-config {}", "names no method"),
        ('--speculative-config \'{"method": "suffix", "k": 1}\'', "'k' is unknown"),
        ("--repeats 0", "--repeats is 0; pass at least 1"),
        ("--limit 0", "--limit is 0; pass at least 1"),
        ("--turns 0", "--turns is 0; pass at least 1"),
        ("--max-new-tokens 0", "--max-new-tokens is 0"),
        ("--temperature -1", "temperature is -1"),
        ("--draft-model x", "--draft-model is 'x' and none of"),
        ("--head x", "--head is 'x' and none of"),
        ("--methods coupled_tree", "needs a draft model and none was given"),
        ("--methods rest", "method rest needs datastore"),
        ("--memory /absent", "--memory is /absent, and there is no such file"),
        ("--prompts x", "--questions and --prompts were both given"),
        ("--speed-bench x", "--questions and --speed-bench were both given"),
        ("--questions /absent", "--questions /absent cannot be read"),
        ("--max-new-tokens 64", "no question leaves room for --max-new-tokens 64"),
        ("--out @line/inside", "cannot be written"),
        ("--out @rows", "line 2 of ... is not a row of a bench"),
    ],
    "certify --max-new-tokens 12 --model @folder": [
        ("--temperature 0", "--temperature is 0; pass a number above 0"),
        ("--limit 0", "--limit is 0; pass at least 1"),
        ("--draws 0", "--draws is 0; pass at least 1"),
        ("--method suffix --head x", "suffix's option 'head' is unknown"),
        ("--prompts /absent", "--prompts /absent cannot be read"),
        ("--max-new-tokens 100000 --limit 1", "max_new_tokens is 100000"),
        ("--prompts @line --bitwise --batch-invariant 1", "batch_invariant is 1"),
        (
            "--prompts @line --batch-invariant 4000",
            "batch_invariant is 4000; pass an integer in 2 .. ",
        ),
    ],
    "trace x": [
        ("--out @tmp/none/page.html", "none, which is not a folder; make it first"),
        ("--out @tmp", "is a folder; name a file in it"),
        ("--max-new-tokens 0", "--max-new-tokens is 0; pass at least 1"),
        ("--model @tmp", "@tmp"),
    ],
    "trace": [("' '", "the prompt is empty; write some text")],
    "datastore build --model @folder": [
        ("@tmp/none.txt --out @tmp/x", "none.txt does not exist"),
        ("'@file: |' --out @tmp/x", "prompts.txt holds no text"),
        ("@line --out @tmp/no/x", "is in no folder that exists"),
        ("@line --out @tmp", "cannot be written; name a file"),
        ("@line --out @line", "is one of the texts; name another file"),
        ("@tmp --out @line", "is one of the texts; name another file"),
        ("@line --out @tmp/x --model @line", "is a file"),
    ],
    "serve --model @folder": [
        ("--lora sql", "--lora is 'sql'; pass NAME=DIR"),
        ("--lora a=b --lora a=c", "the name 'a' twice"),
        ("--served-model-name a --lora a=b", "which is the model's own name"),
    ],
    "plan llama-8b --method prompt_lookup": [
        ("--topology v5e:3x5", "v5e has no such slice; take one of 1x1, 2x2"),
        ("--topology v5p:2x4", "v5p has no such slice"),
        ("--topology v9:2x2", "an unknown generation"),
        ("--topology h99:1", "h200, b200 and a number, such as h100:8"),
        ("--topology h100:3", "a host has 1, 2, 4, 8 GPUs; take h100:1 to h100:8"),
        ("--topology v5e:2x4 --mesh model=4", "whose product is 8"),
        ("--topology v5e:2x4", "pip install 'jspec-jax[tpu]' into an environment"),
        ("--topology h100:8", "pip install 'jspec-jax[cuda-aot]' into an environment"),
        ("--mesh rows=2", "pass axes such as data=2,model=4"),
        ("--mesh data=2,data=4", "such as data=2,model=4, each of them once"),
        (f"--mesh model={'9' * 50}", "each of them once"),
        ("--mesh data=0", "data of --mesh is 0; pass an integer in 1 .. 65536"),
        ("--method medusa", "llama-8b is neither a bundled model"),
    ],
    "plan jspec-800k --max-model-len 64 --method token_recycling": [
        ("--mesh data=3 --rows 4", "such as 6"),
        ("--rows 0", "rows is 0"),
        ("--max-model-len 200000", "--max-model-len is 200000"),
        ("--mesh model=64", "take fewer, or name a --topology"),
        ("--max-new-tokens 64", "--max-new-tokens is 64; pass an integer in 1 .. 63"),
    ],
    "plan": [("no-such-model", "shapes that need no file: llama-1b")],
    **{name: [("", f"jspec {name} is gone; {instead}")] for name, instead in GONE.items()},
}


@pytest.fixture
def places(folder, draft, tmp_path) -> dict[str, str]:
    """What `@name` means in the table."""
    for name in ("tmp", "damaged", "rows"):
        (tmp_path / name).mkdir()
    for file in folder.iterdir():
        (tmp_path / "damaged" / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (tmp_path / "rows" / "rows.jsonl").write_text('{"run": 1}\nno row\n{}\n')
    question = '{"question_id": 1, "category": "tales", "turns": ["Once upon a time"]}'
    (tmp_path / "questions").write_text(question)
    (tmp_path / "tmp" / "line.txt").write_text("Once upon")
    named = {name: tmp_path / name for name in ("damaged", "rows", "questions", "tmp")}
    named |= {"line": tmp_path / "tmp" / "line.txt", "folder": folder, "draft": draft}
    return {f"@{name}": str(path) for name, path in named.items()}


@pytest.mark.parametrize("call", REFUSED)
def test_bad_input_is_one_sentence(command, places, call, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))  # plan sets variables for libtpu
    monkeypatch.setattr("jspec.planning.topology.find_spec", lambda name: None)
    monkeypatch.setattr("jspec.planning.gpu_chips.find_spec", lambda name: None)
    prompts = tmp_path / "prompts.txt"

    def contents():
        files = filter(Path.is_file, tmp_path.rglob("*"))
        return {path: content for path in files if (content := path.read_bytes())}

    before = contents()
    wrong = []
    for row, said in REFUSED[call]:
        words = f"{call} {row}"
        for name, path in places.items():
            words, said = words.replace(name, path), said.replace(name, path)
        arguments = []
        for argument in shlex.split(words):
            if argument.startswith("@file:"):
                prompts.write_text("\n".join(argument.removeprefix("@file:").split("|")))
                argument = prompts
            arguments.append(argument)
        ran = command(*arguments)
        sentence = ".*".join(map(re.escape, said.split("...")))
        if (ran.code, ran.out, ran.err.count("\n")) != (2, "", 1) or not re.search(
            f"^jspec: .*{sentence}", ran.err
        ):
            wrong.append((row, ran))
        prompts.unlink(missing_ok=True)
    assert not wrong, wrong
    assert contents() == before, "nothing is lost or written"


def test_prompts_of_standard_input_are_refused_too(command, folder):
    for prompt, said in (("", "input is empty"), ("猫" * 99, "context is 64; shorten")):
        ran = command("generate", "-", "--model", folder, stdin=prompt)
        assert ran.code == 2 and said in ran.err and ran.err.count("\n") == 1


def test_a_file_that_cannot_be_written_is_said_before_models_are_loaded(
    command, tmp_path, monkeypatch
):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    ran = command("trace", "x", "--model", "no/such", "--out", tmp_path / "page.html")
    assert ran.code == 2 and "cannot be written; name a file that you may write" in ran.err


def test_other_mistakes_than_names_that_are_gone_keep_their_message(command):
    assert "--no-such" in command("plan", "--no-such").err
    assert replacement(["bench", "--device", "v5e"]) is None
