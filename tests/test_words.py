"""Plain English: messages, help texts and pages keep to a few rules.

`python tests/test_words.py [folder ..]` prints the findings, one a line, with their count per file.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("jspec", "models", "benchmarks", "tests", "examples", "docs", ".ci", ".")

EXCEPTIONS = {
    "tests/test_words.py": "names what it forbids",
    "forwards, 2, 1": "the name of a section of the accelerators' bench, in its report",
}
"""Files, and phrases of any file, that no rule is applied to, with the reason."""

# Messages, and what they are told from.
TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|(?P<text>"(?:[^"\\\n]|\\.)*")|#[^\n]*', re.DOTALL
)
PHRASES = {
    "not a X, instead of no X": r"(?<!there )\b(?:is|are|was|were) no "
    r"(?!longer\b|more than|\w+er than)",
    "not any, instead of none": r"(?<!there )\b(?:is|are|was|were) (?-i:none)\b",
    "next to, besides": r"\bbeside\b",
    "is, says or holds": r"\bst(?:ands?|ood)\b(?!-| (?:in )?for\b| alone\b)",
    # "its tokens are those of plain decoding" has its noun
    "repeat the noun": r"(?<!\bare )(?<!\bis )(?<!equal )(?<!equals )(?<!than )"
    r"(?<!as )(?<!like )(?<!to )(?<!not )(?<!then )(?<!with )(?<!besides )\b(?:that|those) of\b",
    "without": r"\bof no\b",
    "available": r"\bto be had\b",
    "per round": r"\b(?:tokens|nodes|bytes|forwards|passes|rounds|draws|steps|ms) "
    r"a (?:round|row|token|step|node|level|second)\b",
    "forward pass": r"(?<![-\w./])forwards?\b(?![-.(/=:]| (?:pass|hook))",
}
PHRASES = {advice: re.compile(pattern, re.IGNORECASE) for advice, pattern in PHRASES.items()}


def phrase_findings(text: str) -> Iterator[str]:
    text = re.sub(r"`[^`]*`", "`", re.sub(r"(?<!\n) *\n *(?:# )?(?=\S)", " ", text))
    for advice, pattern in PHRASES.items():
        for found in pattern.finditer(text):
            around = text[max(0, found.start() - 40) : found.end() + 30]
            yield f"{advice}: ..{' '.join(around.split())}.."


def python_findings(source: str) -> Iterator[str]:
    """Of messages: docstrings, comments and names are the author's."""
    end, prose = 0, []
    for token in TOKEN.finditer(source):
        if text := token["text"]:
            if text.count(" ") < 2:
                continue  # a name
            # Parts of one message are read as one text.
            gap = source[end : token.start()].strip(" \nfrb")
            prose += [*([" \n\n"] if gap else []), text.strip('"')]
        end = token.end()
    yield from phrase_findings("".join(prose))


def page_findings(source: str) -> Iterator[str]:
    code = r"^```.*?^```|^---\n.*?^---$|<!--.*?-->|^ {4}(?![ *-])[^\n]*$|^ {6}[^\n]*$"
    text = re.sub(code, "\n\n", source, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    yield from phrase_findings(text)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.|\|) ?)|\|", text)
    for sentence in (part for block in blocks for part in re.split(r"[.?!:][*)]*\s|;\s", block)):
        words = re.findall(r"[\w'`.+-]*\w[\w'`.+-]*", re.sub(r"`[^`]*`", "code", sentence))
        if len(words) > 30:
            yield f"{len(words)} words: {' '.join(words[:12])} .."


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        found = (ROOT / folder).glob("*") if folder == "." else (ROOT / folder).rglob("*")
        yield from (path for path in sorted(found) if path.suffix in {".py", ".pyi", ".md"})


def findings(place: str, source: str) -> list[str]:
    check = page_findings(source) if place.endswith(".md") else python_findings(source)
    return [found for found in check if not any(phrase in found for phrase in EXCEPTIONS)]


def all_findings(wanted: str | tuple[str, ...]) -> dict[str, list[str]]:
    places = {path.relative_to(ROOT).as_posix(): path for path in files()}
    return {
        place: found
        for place, path in places.items()
        if place not in EXCEPTIONS and place.startswith(wanted)
        if (found := findings(place, path.read_text("utf-8")))
    }


def test_words_are_plain():
    found = all_findings("")
    assert not found, "python tests/test_words.py lists these"


def test_each_rule_finds_what_it_forbids():
    wrong = (
        "it is no tree, what is none, beside it, it stands there, compare that of a row, "
        "of no use, to be had, four tokens a round, a whole forward"
    )
    assert {found.split(":")[0] for found in phrase_findings(wrong)} == set(PHRASES)
    source = 'raise Error("a tree is no " "graph here")\n"""It is no graph."""  # it is no graph'
    assert len(list(python_findings(source))) == 1
    assert len(list(page_findings("word " * 31))) == 1


if __name__ == "__main__":
    found = all_findings(tuple(sys.argv[1:]) or "")
    for place, lines in found.items():
        print(*(f"{place}: {line}" for line in lines), sep="\n")
    for place, lines in found.items():
        print(f"{len(lines):5} {place}")
    rules = Counter(line.split(":")[0] for lines in found.values() for line in lines)
    print(*(f"{count:5} {rule}" for rule, count in rules.most_common()), sep="\n")
    print(sum(rules.values()), "findings")
