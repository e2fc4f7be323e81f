"""The options of `jspec generate` that are texts: an answer's grammar, and biases."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from jspec._validate import plain_json
from jspec._validate.errors import InputError

if TYPE_CHECKING:
    from jspec.models.load import Loaded
    from jspec.models.reasoning import Lead
    from jspec.processors.grammar import Grammar


@dataclass(frozen=True)
class AnswerForm:
    """A grammar of answers, by one of these; false if there is none."""

    json_schema: str | None = None
    regex: str | None = None
    choices: Sequence[str] = ()

    def __post_init__(self):
        options = {
            "--json-schema": self.json_schema is not None,
            "--regex": self.regex is not None,
            "--choice": bool(self.choices),
        }
        if len(names := [name for name, is_set in options.items() if is_set]) > 1:
            raise InputError(f"{' and '.join(names)} were given; an answer has one grammar")
        if not all(self.choices):
            raise InputError("an empty text was given to --choice; give it a letter")
        self._schema()

    def __bool__(self) -> bool:
        return self.json_schema is not None or self.regex is not None or bool(self.choices)

    def grammar(self, target: "Loaded", lead: "Lead | None" = None) -> "Grammar | None":
        """Returns the grammar over a model's tokens, behind its thoughts."""
        from jspec.processors import grammar

        if not self:
            return None
        spelling = grammar.token_bytes(target.tokenizer)
        if self.json_schema is not None:
            form = grammar.json_schema(self._schema(), spelling)
        elif self.regex is not None:
            form = grammar.regex(self.regex, spelling)
        else:
            form = grammar.choices(list(self.choices), spelling)
        return grammar.behind(form, lead, spelling)

    def _schema(self) -> str:
        """Returns the text of the schema, read if a file was named."""
        text = self.json_schema or "{}"
        if not text.lstrip().startswith("{"):
            try:
                text = Path(text).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"--json-schema: {text!r:.60} cannot be read: {error}") from None
        try:
            document = plain_json.parse(text)
        except ValueError as error:
            raise InputError(f"--json-schema is not JSON: {error}") from None
        # Halves of UTF-16 pairs are not letters, in its names neither.
        return text if json.loads(text) == document else json.dumps(document)


def parse_logit_bias(text: str | None) -> dict[int, float]:
    """Returns the biases of `--logit-bias`. Raises InputError unless it is such an object."""
    if text is None:
        return {}
    try:
        bias = {int(token): float(value) for token, value in plain_json.parse(text).items()}
        if any(map(isnan, bias.values())):
            raise ValueError
        return bias
    except (ValueError, TypeError, AttributeError):
        raise InputError(
            f"--logit-bias is {text!r:.60}; pass a JSON object of token ids and numbers, such as "
            '{"15": -2.5}'
        ) from None
