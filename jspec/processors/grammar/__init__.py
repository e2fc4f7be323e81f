"""Grammars and stop strings as automata that read tokens.

`regex`, `json_schema` and `choices` compile a grammar for `jspec.decode(..., processors=)`. Regular
expressions and schemas need `outlines-core`, the extra `grammar`.
"""

from jspec.processors.grammar.compile import choices as choices
from jspec.processors.grammar.compile import json_schema as json_schema
from jspec.processors.grammar.compile import regex as regex
from jspec.processors.grammar.masks import Capacity as Capacity
from jspec.processors.grammar.masks import Grammar as Grammar
from jspec.processors.grammar.spelling import token_bytes as token_bytes
from jspec.processors.grammar.stops import StopStrings as StopStrings
from jspec.processors.grammar.thoughts import behind as behind

__all__ = [
    "Capacity",
    "Grammar",
    "StopStrings",
    "behind",
    "choices",
    "json_schema",
    "regex",
    "token_bytes",
]
