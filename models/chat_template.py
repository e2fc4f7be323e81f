"""Conversations as token ids, by the chat template that a checkpoint brings along."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jspec._validate import extras, plain_json
from jspec._validate.errors import InputError
from jspec.models.huggingface import config_json

FILE = "chat_template.jinja"
NAMED = "additional_chat_templates"
"""The folder of templates that have a name."""
TOOLS = "tool_use"
"""The name of the template that is taken where there are tools."""
_DEFAULT = "default"
TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
"""Special tokens that a template may write by these names."""

_MARK = "jspec-reads-where-this-turn-ends"
_KEY = "jspec-reads-how-arguments-are-written"
"""Texts that no template holds."""
_SENT = object()  # content as it was
_GREETING = {"role": "user", "content": "Hi"}
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Fields under which templates read what a model thought."""


@dataclass(frozen=True)
class ChatTemplate:
    """The Jinja template that a chat model was trained with.

    It is rendered as `transformers` does it: in a sandbox, with the names of special tokens, and
    with `raise_exception` and `strftime_now` at hand. Nothing is compiled before it is used.

    Args:
        template: the Jinja source.
        tokenizer: a `tokenizers.Tokenizer`.
        special_tokens: text of special tokens by the names in `TOKENS`.
        source: the file that it comes from, for messages.
        named: other templates by their names; a conversation with `tools` takes "tool_use".

    Example:
        >>> from tokenizers import Tokenizer, models
        >>> words = Tokenizer(models.WordLevel({"<Hi>": 0}))
        >>> chat = ChatTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}", words)
        >>> chat.render([{"role": "user", "content": "Hi"}])
        '<Hi>'
        >>> chat.encode([{"role": "user", "content": "Hi"}])
        [0]
    """

    template: str
    tokenizer: Any = field(repr=False)
    special_tokens: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    source: str = "the chat template"
    named: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def check_syntax(self) -> None:
        """Raises InputError if a template is not one of Jinja."""
        for template in {self.template, self.with_tools}:
            _compile(template, self.source)

    @property
    def with_tools(self) -> str:
        """The template of conversations with tools."""
        return self.named.get(TOOLS, self.template)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Returns token ids of a conversation, first token included.

        Args:
            messages: as in `render`.
            add_generation_prompt: True opens the turn that the model is to write.
            **variables: others that the template reads, `enable_thinking=False` for instance.

        Returns:
            The prompt to decode from.

        Raises:
            InputError: as `render` does.
        """
        text = self.render(messages, add_generation_prompt, **variables)
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        watch: Callable[[int], None] | None = None,
        **variables: Any,
    ) -> str:
        """Returns the text of a conversation, in time that grows with its length.

        Past calls are written in the form that the template shows: their arguments as text or as an
        object, their message's content null or empty.

        Args:
            messages: `{"role": "user", "content": "..."}` and so on, at least one. As in the OpenAI
                API, one with `tool_calls` needs no content, and one may have `reasoning_content`.
            add_generation_prompt: True opens the turn that the model is to write.
            watch: is given the number of letters again and again; what it raises ends the text.
            **variables: others that the template reads.

        Raises:
            InputError: if a message is not valid, the template is broken, refuses the conversation
                or leaves out a message, a call or thoughts, or jinja2 is not installed.
        """
        render = partial(
            self._render, opens=add_generation_prompt, variables=variables, watch=watch
        )
        self._place_thoughts(turns := normal(messages), variables)
        text = render(turns := self._with_calls(turns, render))
        place = 0
        for number, message in enumerate(turns):
            content = (message.get("content") or "").strip()
            if (place := text.find(content, place)) < 0:
                # Once for all that are left, since each time takes as long as the whole.
                self._check_shown(turns, number, render)
                break
            place += len(content)
        return text

    def _check_shown(
        self, messages: list[dict[str, Any]], first: int, render: Callable[[Any], str]
    ) -> None:
        """Raises InputError if the template has no place for a message from one of them on."""
        # Some show a call and not the text that comes with it.
        places = [n for n in range(first, len(messages)) if not messages[n].get("tool_calls")]
        marks = {number: {"content": f"{_MARK}-{number}-"} for number in places}
        text = render([message | marks.get(number, {}) for number, message in enumerate(messages)])
        numbers = {int(number) for number in re.findall(rf"{_MARK}-(\d+)-", text)}
        if lost := [number for number in places if number not in numbers]:
            raise InputError(
                f"{self.source} leaves out message {lost[0] + 1}, of role "
                f"{messages[lost[0]]['role']!r:.60}; give a role that it knows"
            )

    def _place_thoughts(self, turns: list[dict[str, Any]], variables: Mapping[str, Any]) -> None:
        """Puts thoughts where the template reads them; raises InputError if it does not."""
        thinking = [number for number, turn in enumerate(turns) if turn.get(THOUGHTS[0])]
        for name in THOUGHTS if thinking else ():
            probe = [_GREETING, {"role": "assistant", "content": "Ho", name: _MARK}]
            with suppress(InputError):
                if _MARK in self._render(probe, False, variables):
                    for number in thinking:
                        turns[number][name] = turns[number][THOUGHTS[0]]
                    return
        if thinking:
            raise InputError(
                f"{self.source} has no place for {THOUGHTS[0]}, which message {thinking[0] + 1} "
                "has; leave it out"
            )

    def _with_calls(
        self, turns: list[dict[str, Any]], render: Callable[[Any], str]
    ) -> list[dict[str, Any]]:
        """Returns the messages in the form in which the template shows their calls."""
        calls = [(n, call) for n, turn in enumerate(turns) for call in turn.get("tool_calls") or ()]
        if not calls:
            return turns
        forms, refusals, readable = [], [], False
        contents = (_SENT,) if all(turns[n].get("content") for n, _ in calls) else (_SENT, None, "")
        for content, as_text in product(contents, (False, True)):
            try:
                text = render(_in_form(turns, content, as_text, True))
            except InputError as refusal:
                refusals.append(refusal)
                continue
            readable = True
            if len(set(re.findall(rf"{_MARK}-\d+-\d+-", text))) == len(calls) and _KEY in text:
                # Not JSON, but what Python prints, or a text within a text.
                wrong = sum(map(text.count, ("None", f"'{_KEY}", f'\\"{_KEY}')))
                forms.append((wrong, len(forms), content, as_text))
                if not wrong:
                    break
        if forms:
            return _in_form(turns, *min(forms)[2:])
        if not readable:
            raise refusals[0]
        raise InputError(
            f"{self.source} has no place for calls, and message {calls[0][0] + 1} has one; take a "
            "template with tools, or leave it out"
        )

    @cached_property
    def end_of_turn(self) -> tuple[int, ...]:
        """The token behind a turn of the model's, if the template writes one, special or not."""
        try:
            text = self._render([_GREETING, {"role": "assistant", "content": _MARK}], False, {})
        except InputError:
            return ()
        rest = text.rpartition(_MARK)[2].lstrip()
        ids = self.tokenizer.encode(rest, add_special_tokens=False).ids[:1]
        added = self.tokenizer.get_added_tokens_decoder()
        return tuple(token for token in ids if token in added)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        opens: bool,
        variables: Mapping[str, Any],
        watch: Callable[[int], None] | None = None,
    ) -> str:
        template = self.template if variables.get("tools") is None else self.with_tools
        compiled = _compile(template, self.source)
        context = {
            "tools": None,
            "documents": None,
            **self.special_tokens,
            **variables,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": opens,
        }
        pieces, size, stream = [], 0, iter(compiled.generate(context))
        while True:
            try:
                piece = next(stream, None)
            except Exception as error:  # a template is a program: it may fail in any way
                raise InputError(
                    f"{self.source} refuses the conversation ({_reason(error):.200}); change the "
                    "messages, or mend the template"
                ) from error
            if piece is None:
                return "".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if watch is not None:
                watch(size)


def normal(messages: Any) -> list[dict[str, Any]]:
    """Returns messages with content as one text, and without the role that only the API knows."""
    shape = '{"role": "user", "content": "..."}'
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InputError(f"the conversation is not a list of messages; pass [{shape}]")
    turns = [dict(message) if isinstance(message, Mapping) else {} for message in messages]
    for number, turn in enumerate(turns, 1):
        if isinstance(parts := turn.get("content"), list):
            texts = [part["text"] for part in parts if isinstance(part, Mapping) and "text" in part]
            turn["content"] = "".join(map(str, texts)) if len(texts) == len(parts) else None
        turn["role"] = "system" if (role := turn.get("role")) == "developer" else role
        # A call may come without text.
        silent = turn.get("tool_calls") and turn.get("content") is None
        texts = ("role",) if silent else ("role", "content")
        if wrong := [key for key in texts if not isinstance(turn.get(key), str)]:
            raise InputError(
                f"message {number} of the conversation has no text under {wrong[0]!r}; pass {shape}"
            )
    return turns


def _in_form(
    turns: list[dict[str, Any]], content: Any, as_text: bool, is_marked: bool = False
) -> list[dict[str, Any]]:
    """Returns messages with their calls in a form, or with marks for names and arguments."""
    output = []
    for number, turn in enumerate(turns):
        if calls := turn.get("tool_calls"):
            silent = content is not _SENT and not turn.get("content")
            places = [f"[{number}].tool_calls[{place}].function" for place in range(len(calls))]
            calls = [_call(*pair, as_text) for pair in zip(calls, places, strict=True)]
            for place, call in enumerate(calls if is_marked else ()):
                key = {_KEY: _KEY}
                call["function"] |= {
                    "name": f"{_MARK}-{number}-{place}-",
                    "arguments": json.dumps(key) if as_text else key,
                }
            turn = turn | {"tool_calls": calls} | ({"content": content} if silent else {})
        output.append(turn)
    return output


def _call(call: Any, place: str, as_text: bool) -> dict[str, Any]:
    """Returns a call with its arguments as text, as it was sent, or as an object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"messages{place} has no name; send one")
    raw = function.get("arguments")
    try:
        text = raw.strip() if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)
        # What has no parameters is called with {}, null, or nothing at all.
        text = "{}" if text in ("", "null") else text
        value = plain_json.parse(text)
    except (TypeError, ValueError):
        raise InputError(f"messages{place}.arguments is not JSON; send it so") from None
    return {**call, "function": {**function, "arguments": text if as_text else value}}


def read(folder: Path, tokenizer: Any) -> ChatTemplate | None:
    """Returns the template of a Hugging Face folder; None if it has none."""
    words = config_json.read(folder / "tokenizer_config.json", required=False)
    templates, source = by_name(words.get("chat_template")), words.source
    for file in (folder / FILE, folder / "chat_template.json"):
        if file.is_file():
            source = str(file)
            value = (
                _read(file)
                if file.suffix == ".jinja"
                else config_json.read(file).get("chat_template")
            )
            templates = by_name(value)
            break
    templates |= {file.stem: _read(file) for file in sorted((folder / NAMED).glob("*.jinja"))}
    return pick_default(
        templates, tokenizer, special_tokens(folder), f"the chat template in {source}"
    )


def special_tokens(folder: Path) -> dict[str, str]:
    """Returns the texts of a folder's special tokens by the names in `TOKENS`."""
    files = "special_tokens_map.json", "tokenizer_config.json"
    fields = {
        name: value
        for file in files
        for name, value in config_json.read(folder / file, required=False).values.items()
    }
    texts = {name: _text(fields.get(name)) for name in TOKENS}
    return {name: text for name, text in texts.items() if text is not None}


def by_name(value: Any) -> dict[str, str]:
    """Returns the templates of one field, which is a text or texts by name."""
    if isinstance(value, str):
        return {_DEFAULT: value}
    pairs = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list):
        listed = [entry for entry in value if isinstance(entry, Mapping)]
        pairs = ((entry.get("name"), entry.get("template")) for entry in listed)
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def pick_default(
    templates: Mapping[str, str], tokenizer: Any, special_tokens: Mapping[str, str], source: str
) -> ChatTemplate | None:
    """Returns the default of several templates, which knows the others; None if there is none."""
    rest = dict(templates)
    template = rest.pop(_DEFAULT, None)
    if template is None:
        return None
    return ChatTemplate(template, tokenizer, special_tokens, source, rest)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start}); convert it") from None


def _text(token: Any) -> str | None:
    """Returns a special token's text; some files describe the token instead."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


@cache
def _compile(template: str, source: str) -> Any:
    """Returns the compiled template, in an environment like that of `transformers`."""
    extras.require(source, "cli", "jinja2")
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what a model is trained on; here it changes nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Namespace(jinja2.utils.Namespace):
        """Jinja's, without the names by which a template could reach into Python."""

        def __init__(*args: Any, **fields: Any) -> None:
            for name in dict(*args[1:], **fields):
                Namespace._check(name)
            jinja2.utils.Namespace.__init__(*args, **fields)

        def __setitem__(self, name: str, value: Any) -> None:
            Namespace._check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def _check(name: Any) -> None:
            if str(name).startswith("_"):
                raise jinja2.exceptions.SecurityError(f"it may not store {name!r}")

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own escapes what HTML gives a meaning to.
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(
        raise_exception=refuse,
        strftime_now=lambda form: datetime.now().strftime(form),
        dict=lambda *args, **fields: dict(*args, **fields),
        namespace=Namespace,
    )
    try:
        return environment.from_string(template)
    except (jinja2.TemplateError, RecursionError) as error:
        raise InputError(
            f"{source} is not a Jinja template ({_reason(error)}); restore the file"
        ) from error
