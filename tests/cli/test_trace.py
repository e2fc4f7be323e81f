"""`jspec trace`: the file, what it says, and what is refused."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest
import traces
from tokenizers import Tokenizer, decoders, models

import jspec
from jspec.cli.trace import token_text
from jspec.cli.trace.page import page
from jspec.models.load import load


def data_of(html: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


@pytest.fixture(scope="module")
def made() -> str:
    trace = traces.made(12, 20, sampled=True)
    return page(trace, traces.Words(), {"model": "<b>&", "sampling": "temperature 0.8"})


@pytest.mark.slow
def test_the_page_holds_the_generation_of_generate(command, folder, tmp_path):
    out = tmp_path / "page.html"
    call = ["Once upon", "--model", folder, "--max-new-tokens", 12, "--temperature", 0.9]
    call += ["--seed", 5, "--method", "spine"]
    ran = command("trace", *call, "--out", out)
    assert ran.code == 0, ran.err
    assert re.fullmatch(r".*page.html: 12 tokens in \d+ rounds, .* a round .*\n", ran.out)
    held = data_of(out.read_text("utf-8"))
    line = json.loads(command("generate", *call, "--json").out)
    assert [token for one in held["trace"]["rounds"] for token in one["emitted"]] == line["tokens"]
    assert "".join(held["pieces"]) == line["text"]
    assert held["prompt_text"] == "Once upon"
    assert held["settings"]["sampling"] == "temperature 0.9, seed 5"
    assert held["trace"]["origins"] == ["Spine"]
    shown = {token for one in held["trace"]["rounds"] for token in one["tokens"]}
    assert shown <= {int(token) for token in held["strings"]}


def test_the_page_needs_nothing_else(made):
    rest = made.replace(re.search(r'id="data">(.*?)</script>', made, re.DOTALL)[1], "")
    addresses = set(re.findall(r"[a-z]+://[^\s\"'`]+", rest))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of a namespace"
    assert not re.search(r"<link(?![^>]*data:,)|<img|<iframe|@import|url\(|fetch\(|import\(", rest)
    assert "default-src 'none'" in made
    # Its own script alone may run.
    policy = re.search(r"script-src 'sha256-([^']+)'", made)[1]
    (script,) = re.findall(r"<script>(.*?)</script>", made, re.DOTALL)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == policy


def test_text_is_never_markup(made):
    inside = re.search(r'id="data">(.*?)</script>', made, re.DOTALL)[1]
    assert not set(inside) & set("<>&\u2028\u2029")
    assert made.count("<script") == 2
    held = data_of(made)
    assert "<script>alert(1)</script>" in held["strings"].values()
    assert held["settings"]["model"] == "<b>&"
    assert "{{STYLE}}" in held["strings"].values(), "what looks like a mark of the template stays"
    # A long generation is a small file.
    html = page(traces.made(200, 80, sampled=True), traces.Words(), {})
    assert len(html.encode()) < 3e6


def test_tokens_are_named_as_within_a_text():
    tokenizer = load("jspec-800k").tokenizer
    text = "Tom said: 猫 \n\tfoo"
    ids = tokenizer.encode(text).ids
    named = token_text.strings(tokenizer, [*ids, 0])
    plain = [one for one in named.values() if isinstance(one, str)]
    assert all(one in text for one in plain) and any(one.startswith(" ") for one in plain)
    raw = [named[token]["bytes"] for token in ids if "bytes" in named[token]]
    assert " ".join(raw) in "猫".encode().hex(" ").upper()
    assert named[0] == {"sign": tokenizer.id_to_token(0)}
    words = Tokenizer(models.BPE({"a": 0, "ä": 1, "Ġð": 2, "<pad>": 3}, []))
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens(["<pad>"])
    assert token_text.strings(words, [1, 2, 3, 4]) == {
        1: {"bytes": "E4"},
        2: {"bytes": "20 F0"},
        3: {"sign": "<pad>"},
        4: {"sign": "#4"},
    }


def test_a_page_of_one_round_and_of_none():
    model = jspec.testing.PrefixLM()
    for limit, count in ((1, 1), (0, 0)):
        trace = jspec.trace(
            model,
            model.init(),
            np.array([[1, 2]]),
            max_new_tokens=1,
            stopping=jspec.Stopping(max_tokens=[limit]),
        )
        assert len(data_of(page(trace, traces.Words(), {}))["trace"]["rounds"]) == count
