"""What a row may hold, and what ends it: texts as automata that read tokens.

`regex`, `json_schema` and `choices` compile a grammar for `jspec.decode(..., grammar=)`. Regular
expressions and schemas need `outlines-core`, the extra `grammar`.
"""

from jspec.processors.grammar.automaton import Room as Room
from jspec.processors.grammar.compile import Grammar as Grammar
from jspec.processors.grammar.compile import choices as choices
from jspec.processors.grammar.compile import json_schema as json_schema
from jspec.processors.grammar.compile import regex as regex
from jspec.processors.grammar.spelling import token_bytes as token_bytes

__all__ = ["Grammar", "Room", "choices", "json_schema", "regex", "token_bytes"]
