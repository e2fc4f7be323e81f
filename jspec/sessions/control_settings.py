"""The settings of `jspec generate` that say what may be written, and when it ends."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jspec._validate import plain_json
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number

if TYPE_CHECKING:
    from jspec.models.load import Loaded
    from jspec.models.reasoning import Lead
    from jspec.types import Stopping


@dataclass(frozen=True)
class ControlSettings:
    """Requests of a run besides tokens; nothing by default."""

    stop: Sequence[str] = ()
    json_schema: str | None = None
    regex: str | None = None
    choices: Sequence[str] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: str | None = None
    min_tokens: int = 0
    banned_sequences: Sequence[Sequence[int]] = ()
    logprobs: int | None = None

    def __post_init__(self):
        check_number("--repetition-penalty", self.repetition_penalty, 1e-6, 1e6, "1 is off")
        check_number("--frequency-penalty", self.frequency_penalty, -1e6, 1e6, "0 is off")
        check_number("--presence-penalty", self.presence_penalty, -1e6, 1e6, "0 is off")
        check_integer("--min-tokens", self.min_tokens, 0, 2**31 - 1)
        if self.logprobs is not None:
            check_integer("--logprobs", self.logprobs, 0, 1000)
        given = [
            name
            for name, value in (
                ("--json-schema", self.json_schema is not None),
                ("--regex", self.regex is not None),
                ("--choice", bool(self.choices)),
            )
            if value
        ]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} were given; an answer has one grammar")
        if any(not text for text in (*self.stop, *self.choices)):
            raise InputError("an empty text was given to --stop or --choice; give each a letter")
        self._bias()
        self._schema()

    @property
    def has_grammar(self) -> bool:
        return self.json_schema is not None or self.regex is not None or bool(self.choices)

    def processors(self, target: "Loaded", lead: "Lead | None" = None) -> list[Any]:
        """Returns the `processors` of `jspec.decode`, without those that change nothing."""
        from jspec import processors
        from jspec.processors import grammar
        from jspec.processors.grammar.thoughts import behind

        made: list[Any] = []
        if self.repetition_penalty != 1:
            made.append(processors.repetition_penalty(self.repetition_penalty))
        if self.frequency_penalty != 0:
            made.append(processors.frequency_penalty(self.frequency_penalty))
        if self.presence_penalty != 0:
            made.append(processors.presence_penalty(self.presence_penalty))
        if bias := self._bias():
            made.append(processors.logit_bias(bias))
        if self.banned_sequences:
            made.append(processors.banned_sequences(self.banned_sequences))
        if self.has_grammar:
            spelling = grammar.token_bytes(target.tokenizer)
            if self.json_schema is not None:
                form = grammar.json_schema(self._schema(), spelling)
            elif self.regex is not None:
                form = grammar.regex(self.regex, spelling)
            else:
                form = grammar.choices(list(self.choices), spelling)
            made.append(behind(form, lead, spelling))
        if self.logprobs is not None:
            made.append(processors.logprobs(self.logprobs))
        return made

    def stopping(self, target: "Loaded") -> "Stopping":
        """Returns where answers end, but for end tokens and the most tokens."""
        from jspec.processors.grammar.stops import stop_strings
        from jspec.types import Stopping

        stop = stop_strings(list(self.stop), target.tokenizer) if self.stop else None
        return Stopping(min_tokens=self.min_tokens or None, stop=stop)

    def _bias(self) -> dict[int, float]:
        if self.logit_bias is None:
            return {}
        try:
            known = plain_json.parsed(self.logit_bias)
            bias = {int(token): float(value) for token, value in known.items()}
            if any(map(isnan, bias.values())):
                raise ValueError
            return bias
        except (ValueError, TypeError, AttributeError):
            raise InputError(
                f"--logit-bias is {self.logit_bias!r:.60}; pass a JSON object of token ids and "
                'numbers, such as {"15": -2.5}'
            ) from None

    def _schema(self) -> str:
        """Returns the text of the schema, read if a file was named."""
        text = self.json_schema or "{}"
        if not text.lstrip().startswith("{"):
            try:
                text = Path(text).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"--json-schema: {text!r:.60} cannot be read: {error}") from None
        try:
            known = plain_json.parsed(text)
        except ValueError as error:
            raise InputError(f"--json-schema is not JSON: {error}") from None
        # Halves of UTF-16 pairs are not letters, in its names neither.
        return text if json.loads(text) == known else json.dumps(known)
