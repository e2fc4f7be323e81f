"""Plain English: docstrings, comments, messages, help texts and pages keep to a few rules.

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

# Strings, comments and the heads of definitions, in the order of the file.
TOKEN = re.compile(
    r'(?P<doc>"""(?:[^"\\]|\\.|"(?!""))*""")|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<comment>#[^\n]*)'
    r"|^(?P<indent> *)(?P<kind>@|(?:async )?def|class)\b ?(?P<name>\w*)",
    re.MULTILINE | re.DOTALL,
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
FIRST = set("what who whom whose which where whether that those these how it".split())
"""Words that no docstring begins with."""
CLAUSE = re.compile(r"[,;:] (?:and|but|which|who|whose|so|as|where|while|since|if)\b")


def docstring_findings(text: str, kind: str, name: str, place: str) -> Iterator[str]:
    line = text.split("\n")[0]
    first = re.match(r"[\w']*", line.lstrip("`").split(" ")[0].lower())[0]
    if first in FIRST:
        yield f"begin with a {'verb' if kind == 'def' else 'noun'}: {line}"
    # Commands' help says "Train", not "Trains".
    elif (
        kind == "def" and not place.startswith(("tests/", "jspec/cli/")) and not first.endswith("s")
    ):
        yield f"begin with a verb in the third person: {line}"
    if len(line) > 90:
        yield f"{len(line)} characters in the first line: {line}"
    if len(CLAUSE.findall(text.split(".\n")[0].split("\n\n")[0])) > 1:
        yield f"one clause after a comma: {line}"


def phrase_findings(text: str) -> Iterator[str]:
    text = re.sub(r"`[^`]*`", "`", re.sub(r"(?<!\n) *\n *(?:# )?(?=\S)", " ", text))
    for advice, pattern in PHRASES.items():
        for found in pattern.finditer(text):
            around = text[max(0, found.start() - 40) : found.end() + 30]
            yield f"{advice}: ..{' '.join(around.split())}.."


def python_findings(source: str, place: str) -> Iterator[str]:
    owners, is_property, end, prose = {}, False, 0, []
    for token in TOKEN.finditer(source):
        if token["kind"] == "@":
            is_property |= (
                token["name"].endswith("property")
                or "_property" in source[token.end() : token.end() + 16]
            )
        elif token["kind"]:
            kind = "class" if is_property else token["kind"].split()[-1]
            owners[len(token["indent"])] = (kind, token["name"])
            if kind == "def" and token["name"].startswith("test_"):
                for finding in phrase_findings(token["name"].replace("_", " ")):
                    yield f"name of a test: {finding}"
                if token["name"].split("_")[1] in FIRST - {"it"}:
                    yield f"name of a test: {token['name']}"
            is_property = False
        elif token["doc"]:
            before = source[: token.start()].rsplit("\n", 1)[-1]
            head = source[end : token.start()].rstrip()
            if not before.strip():  # an attribute's docstring has no head
                at = len(before) - 4
                kind, name = owners.get(at, ("", "")) if head.endswith(":") else ("", "")
                yield from docstring_findings(token["doc"][3:-3], kind, name, place)
            prose.append(token["doc"] + "\n\n")
        else:
            if token["text"] and token["text"].count(" ") < 2:
                continue  # a name
            # Parts of one message, and lines of one comment, are read as one text.
            gap = source[end : token.start()].strip(" \nfrb")
            text = token["text"] or token["comment"]
            prose += [*([" \n\n"] if gap else []), text.strip('"#')]
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
    check = page_findings(source) if place.endswith(".md") else python_findings(source, place)
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
    source = 'def tree():\n    """What it gives."""\n\n\ndef leaf():\n    """The leaf."""\n'
    assert len(list(python_findings(source, "jspec/a.py"))) == 2
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
