"""The trace as one HTML file: this folder's parts with the data in them."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import jspec
from jspec import Trace
from jspec.cli.trace.token_text import strings
from jspec.models.detokenise import Detokeniser

_SCRIPTS = ("data.js", "labels.js", "tree.js", "panels.js", "overview.js", "viewer.js")
"""The parts of the page's script, in the order in which they use one another."""


def page(trace: Trace, tokenizer: Any, settings: Mapping[str, str]) -> str:
    """Returns the HTML of a trace."""
    script = "(() => {\n" + '"use strict";\n' + "".join(map(_part, _SCRIPTS)) + "})();\n"
    # As the browser sees it: the line breaks around the script are part of it.
    digest = hashlib.sha256(f"\n{script}\n".encode()).digest()
    parts = {
        "{{SCRIPT_HASH}}": base64.b64encode(digest).decode(),
        "{{VERSION}}": jspec.__version__,
        "{{STYLE}}": _part("style.css"),
        "{{SCRIPT}}": script,
        # Last: nothing is looked for in it any more.
        "{{DATA}}": _inline(data(trace, tokenizer, settings)),
    }
    html = _part("page.html")
    for name, part in parts.items():
        html = html.replace(name, part, 1)
    return html


def data(trace: Trace, tokenizer: Any, settings: Mapping[str, str]) -> dict[str, Any]:
    """Returns the data of the page: the trace, and what its tokens say."""
    prompt, tokens = trace.prompt.tolist(), trace.tokens.tolist()
    row = Detokeniser(tokenizer, prompt)
    pieces = [row.push([token]) for token in tokens]
    if pieces:
        pieces[-1] += row.finish()
    return {
        "settings": dict(settings),
        "prompt_text": row.prompt,
        "pieces": pieces,
        "strings": strings(tokenizer, _tokens(trace, tokens)),
        "trace": trace.to_dict(),
    }


def _tokens(trace: Trace, emitted: Sequence[int]) -> Iterable[int]:
    """Returns every token that the page shows, once."""
    tokens = {*emitted}
    for traced in trace.rounds:
        tokens |= {traced.bonus, *traced.tokens.tolist(), *traced.candidates.ravel().tolist()}
    return sorted(tokens)


def _inline(value: Any) -> str:
    """Returns JSON that no HTML parser takes for markup, whatever the text says."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _part(name: str) -> str:
    return resources.files("jspec.cli.trace").joinpath(name).read_text("utf-8")
