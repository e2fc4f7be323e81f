"""Conversations as token ids, by the chat template that a checkpoint brings along."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jspec._validate import extras
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
"""Text that no template holds."""


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

        Args:
            messages: `{"role": "user", "content": "..."}` and so on, at least one.
            add_generation_prompt: True opens the turn that the model is to write.
            watch: is given the number of letters again and again; what it raises ends the text.
            **variables: others that the template reads.

        Raises:
            InputError: if a message is not valid, the template is broken, refuses the conversation
                or leaves a message out, or jinja2 is not installed.
        """
        check(messages)
        text = self._render(messages, add_generation_prompt, variables, watch)
        place = 0
        for number, message in enumerate(messages):
            said = message["content"].strip()
            if (place := text.find(said, place)) < 0:
                # Once for all that are left, since each time takes as long as the whole.
                self._check_shown(messages, number, add_generation_prompt, variables, watch)
                break
            place += len(said)
        return text

    def _check_shown(
        self,
        messages: Sequence[Mapping[str, Any]],
        first: int,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        watch: Callable[[int], None] | None,
    ) -> None:
        """Raises InputError if the template has no place for one of the messages from `first` on.

        Templates trim what they show, and some cut out what a model thought before. One that has no
        place for a message shows nothing of it, whatever it says.
        """
        marked = [
            {**message, "content": f"{_MARK}-{number}-"} if number >= first else message
            for number, message in enumerate(messages)
        ]
        text = self._render(marked, add_generation_prompt, variables, watch)
        shown = {int(found) for found in re.findall(rf"{_MARK}-(\d+)-", text)}
        # Some show a call and not the text that comes with it.
        shown |= {number for number, message in enumerate(messages) if message.get("tool_calls")}
        if lost := [number for number in range(first, len(messages)) if number not in shown]:
            raise InputError(
                f"{self.source} leaves out message {lost[0] + 1}, of role "
                f"{messages[lost[0]]['role']!r:.60}; give a role that it knows"
            )

    @cached_property
    def end_of_turn(self) -> tuple[int, ...]:
        """The special token behind a turn of the model's, if the template writes one."""
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": _MARK}]
        try:
            text = self._render(turns, False, {})
        except InputError:
            return ()
        rest = text.rpartition(_MARK)[2].lstrip()
        ids = self.tokenizer.encode(rest, add_special_tokens=False).ids[:1]
        added = self.tokenizer.get_added_tokens_decoder()
        return tuple(token for token in ids if token in added and added[token].special)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        watch: Callable[[int], None] | None = None,
    ) -> str:
        template = self.template if variables.get("tools") is None else self.with_tools
        compiled = _compiled(template, self.source)
        known = {
            "tools": None,
            "documents": None,
            **self.special_tokens,
            **variables,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        pieces, size, written = [], 0, iter(compiled.generate(known))
        while True:
            try:
                piece = next(written, None)
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


def check(messages: Any, source: str = "the conversation") -> None:
    """Refuses what is not a list of messages with a role and a text.

    Raises:
        InputError: naming the first invalid one.
    """
    shape = '{"role": "user", "content": "..."}'
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InputError(f"{source} is not a list of messages; pass [{shape}]")
    for number, message in enumerate(messages, 1):
        fields = message if isinstance(message, Mapping) else {}
        if wrong := [key for key in ("role", "content") if not isinstance(fields.get(key), str)]:
            raise InputError(
                f"message {number} of {source} has no text under {wrong[0]!r}; pass {shape}"
            )


def read(folder: Path, tokenizer: Any) -> ChatTemplate | None:
    """Returns the template of a Hugging Face folder; None if it has none.

    Raises:
        InputError: if a file cannot be read.
    """
    words = config_json.read(folder / "tokenizer_config.json", required=False)
    others = config_json.read(folder / "special_tokens_map.json", required=False)
    special = {**others.values, **words.values}
    named, source = by_name(words.get("chat_template")), words.source
    for file in (folder / FILE, folder / "chat_template.json"):
        if file.is_file():
            source = str(file)
            own = (
                _read(file)
                if file.suffix == ".jinja"
                else config_json.read(file).get("chat_template")
            )
            named = by_name(own)
            break
    named |= {file.stem: _read(file) for file in sorted((folder / NAMED).glob("*.jinja"))}
    texts = {name: _text(special.get(name)) for name in TOKENS}
    known = {name: text for name, text in texts.items() if text is not None}
    return chosen(named, tokenizer, known, f"the chat template in {source}")


def by_name(found: Any) -> dict[str, str]:
    """Returns the templates of one field, which is a text or texts by name."""
    if isinstance(found, str):
        return {_DEFAULT: found}
    pairs = found.items() if isinstance(found, Mapping) else ()
    if isinstance(found, list):
        listed = [one for one in found if isinstance(one, Mapping)]
        pairs = ((one.get("name"), one.get("template")) for one in listed)
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def chosen(
    named: Mapping[str, str], tokenizer: Any, special_tokens: Mapping[str, str], source: str
) -> ChatTemplate | None:
    """Returns the default of several templates, which knows the others; None if there is none."""
    others = dict(named)
    template = others.pop(_DEFAULT, None)
    if template is None:
        return None
    return ChatTemplate(template, tokenizer, special_tokens, source, others)


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
def _compiled(template: str, source: str) -> Any:
    """Returns the compiled template, in an environment like that of `transformers`.

    Raises:
        InputError: if it is not a Jinja template, or jinja2 is not installed.
    """
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
