"""The words of a bench's prompts: the tokenizer's chat template, or the bare text."""

import shutil

import pytest

from jspec._validate.errors import InputError
from jspec.cli.bench.chat import wording
from jspec.models import load


def test_a_chat_template_is_used_where_there_is_one(folder, tmp_path):
    loaded = load(folder)
    tokenizer = loaded.tokenizer
    assert wording(loaded).name == "bare text"
    chat = tmp_path / "chat"
    shutil.copytree(folder, chat)
    (chat / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    )
    found = wording(load(chat))
    said = "<user>Hello<assistant>Hi<user>Bye<assistant>"
    assert found.name == "chat template"
    assert (
        found.ids(["Hello", "Bye"], ["Hi"]) == tokenizer.encode(said, add_special_tokens=False).ids
    )
    assert found.ids([(5, 6)], []) == [5, 6]
    bare = wording(load(chat), raw=True)
    assert bare.ids(["Hello"], []) == tokenizer.encode("Hello").ids
    (chat / "chat_template.jinja").write_text("{{ nothing.there }}")
    with pytest.raises(InputError, match=r"template.* pass --raw"):
        wording(load(chat))
