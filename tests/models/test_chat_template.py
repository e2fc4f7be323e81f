"""Templates of several makes, what refuses a conversation, and where a turn ends."""

import json
import shutil
import sys

import pytest
import tiny_gguf
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

import jspec.models
from jspec.models import chat_template
from jspec.models.chat_template import ChatTemplate

CHATML = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] | trim + '<|im_end|>
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
LLAMA2 = """{{ bos_token }}{% for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant.') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
    {%- else %}{% generation %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endgeneration %}
    {%- endif %}
{%- endfor %}"""
DEAF = "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}{% endif %}{% endfor %}"
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
HI = [{"role": "user", "content": " Hi "}]


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return made


def chat(words, template: str) -> ChatTemplate:
    return ChatTemplate(template, words, {"bos_token": "<s>", "eos_token": "</s>"})


def test_it_writes_the_turns_and_opens_the_next(words):
    template = chat(words, CHATML)
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(HI) == text
    assert template.render(HI, add_generation_prompt=False) == text[: text.rindex("<|im_start|>")]
    ids = template.encode(HI)
    assert words.decode(ids, skip_special_tokens=False) == text
    assert ids[0] == words.token_to_id("<|im_start|>")


def test_the_text_is_that_of_transformers(words):
    from transformers import PreTrainedTokenizerFast

    talk = [*HI, {"role": "assistant", "content": "<b>&"}, {"role": "user", "content": "é"}]
    for template in (CHATML, LLAMA2, "{{ messages | tojson(indent=1) }}{{ dict(a=tools) }}"):
        theirs = PreTrainedTokenizerFast(
            tokenizer_object=words, bos_token="<s>", eos_token="</s>", chat_template=template
        )
        wanted = theirs.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        assert chat(words, template).render(talk) == wanted


def test_the_token_that_ends_a_turn_is_read_off_the_template(words):
    for template, end in ((CHATML, "<|im_end|>"), (LLAMA2, "</s>")):
        assert chat(words, template).end_of_turn == (words.token_to_id(end),)
    assert chat(words, DEAF).end_of_turn == ()
    plain = Tokenizer.from_str(words.to_str().replace('"special":true', '"special":false'))
    assert chat(plain, CHATML).end_of_turn == (words.token_to_id("<|im_end|>"),)
    assert chat(words, "{{ raise_exception('no') }}").end_of_turn == ()


def test_variables_of_the_template_can_be_set(words):
    template = chat(words, "{{ messages[0].content }}{{ ' thinks' if enable_thinking }}")
    assert template.render(HI) == " Hi "
    assert template.render(HI, enable_thinking=True) == " Hi  thinks"


def test_refusals_are_one_sentence(words):
    for template, messages, said in (
        (LLAMA2, [{"role": "assistant", "content": "a"}], "must alternate user/assistant"),
        (DEAF, [*HI, {"role": "critic", "content": "b"}], "leaves out message 2, of role 'critic'"),
        ("{% if %}", HI, "not a Jinja template .*restore the file"),
        ("{{ 1 / 0 }}", HI, "refuses the conversation .division by zero."),
        ("{{ messages[0].content.absent() }}", HI, "refuses the conversation .*absent"),
        ("{{ namespace(__init__=1) }}", HI, "may not store '__init__'"),
        (CHATML, [], "not a list of messages"),
        (CHATML, "Hi", "not a list of messages"),
        (CHATML, [*HI, "Hi"], "message 2 of the conversation has no text under 'role'"),
        (CHATML, [{"role": "user", "content": None}], "no text under 'content'"),
    ):
        with pytest.raises(jspec.InputError, match=said):
            chat(words, template).encode(messages)


def test_a_trimmed_or_empty_message_is_not_left_out(words):
    talk = [{"role": "system", "content": ""}, *HI]
    assert "system\n<|im_end|>" in chat(words, CHATML).render(talk)


THINKS = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}{% endfor %}"
ONCE = "<{{ messages[0].content }}>{% for m in messages %}{{ m.content if m.role != 'system' }}"


def test_a_long_talk_is_written_twice_at_most(words, monkeypatch):
    """One whose template cuts out thoughts was written anew for each message."""
    template, written = chat(words, THINKS), []
    whole = ChatTemplate._render
    monkeypatch.setattr(
        ChatTemplate, "_render", lambda *a, **k: written.append(1) or whole(*a, **k)
    )
    talk = [{"role": "assistant", "content": f"<think>x</think>{n}"} for n in range(300)]
    assert template.render(talk).endswith("<assistant>299")
    assert len(written) == 2
    assert template.render([{**one, "content": "y"} for one in talk]).count("y") == 300
    assert len(written) == 3


def test_a_message_that_is_left_out_is_named_among_those_that_are_cut(words):
    talk = [{"role": "system", "content": "a"}, *HI, {"role": "system", "content": "b"}]
    with pytest.raises(jspec.InputError, match="leaves out message 3, of role 'system'"):
        chat(words, ONCE + "{% endfor %}").render(talk)
    moved = "{% for m in messages | reverse %}{{ m.content }}{% endfor %}"
    assert chat(words, moved).render(talk) == "b Hi a"


def test_a_watcher_can_end_a_text_that_grows_too_long(words):
    class TooLong(Exception):
        pass

    def watch(size):
        seen.append(size)
        if size > 100:
            raise TooLong

    seen = []
    endless = "{{ messages[0].content }}{% for n in range(9999) %}{{ n }}{% endfor %}"
    with pytest.raises(TooLong):
        chat(words, endless).render(HI, watch=watch)
    assert seen == sorted(seen) and 100 < seen[-1] < 110


def test_without_jinja_it_says_what_to_install(words, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(jspec.InputError, match="needs jinja2, which is not installed"):
        chat(words, CHATML + " ").render(HI)


def test_a_folder_holds_it_in_one_of_three_places(fixtures, tmp_path, words):
    folder = shutil.copytree(fixtures / "llama2", tmp_path / "llama2")
    words.save(str(folder / "tokenizer.json"))
    assert jspec.models.load(folder).chat is None
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "1"}]
    for stored, wanted in (("0", "0"), (named, "1")):
        config["chat_template"] = stored
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        assert chat_template.read(folder, words).template == wanted
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "2"}))
    assert chat_template.read(folder, words).template == "2"
    (folder / chat_template.FILE).write_text("3")
    loaded = jspec.models.load(folder).chat
    assert loaded.template == "3"
    assert loaded.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert jspec.models.load(folder, with_tokenizer=False).chat is None


TOOLS = [{"name": "f"}]


def test_a_conversation_with_tools_takes_the_template_of_that_name(fixtures, tmp_path, words):
    """By each of the places where a folder or a file has several."""
    folder = shutil.copytree(fixtures / "llama2", tmp_path / "llama2")
    words.save(str(folder / "tokenizer.json"))
    default, tools = "{{ messages[0].content }}", "{{ messages[0].content }} {{ tools[0].name }}"
    listed = [
        {"name": name, "template": text} for name, text in (("tool_use", tools), ("rag", "x"))
    ]

    def written():
        chat = chat_template.read(folder, words)
        assert chat.template == default
        assert chat.render(HI) == HI[0]["content"] == chat.render(HI, tools=None)
        return chat.render(HI, tools=TOOLS)

    both = f"{HI[0]['content']} f"
    plain = {"name": "default", "template": default}
    for named in ([*listed, plain], {"default": default, "tool_use": tools}):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
        assert written() == both
    (folder / chat_template.FILE).write_text(default)  # which goes before all of those
    assert written() == HI[0]["content"]
    (folder / chat_template.NAMED).mkdir()
    (folder / chat_template.NAMED / "tool_use.jinja").write_text(tools)
    assert written() == both
    (folder / chat_template.FILE).unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": default}))
    assert written() == both
    field = "tokenizer.chat_template"
    for changes, wanted in (({}, HI[0]["content"]), ({f"{field}.tool_use": tools}, both)):
        file = tiny_gguf.convert(
            fixtures / "llama2", tmp_path / "a.gguf", changes={field: default, **changes}
        )
        chat = jspec.models.load(file).chat
        assert chat.render(HI, tools=TOOLS) == wanted
        assert (chat.with_tools, chat.render(HI)) == (
            (changes and tools) or default,
            HI[0]["content"],
        )
    file = tiny_gguf.convert(
        fixtures / "llama2", tmp_path / "a.gguf", changes={field: None, f"{field}.tool_use": tools}
    )
    assert jspec.models.load(file).chat is None
