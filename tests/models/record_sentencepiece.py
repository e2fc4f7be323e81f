"""Records a small SentencePiece vocabulary, and the ids that SentencePiece gives to texts.

Needs the package sentencepiece: `python tests/models/record_sentencepiece.py`.
"""

import io
import json
from pathlib import Path

import sentencepiece

FILE = Path(__file__).parent / "sentencepiece.json"
ROOT = Path(__file__).parents[2]
CORPUS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
TEXTS = [
    "Once upon a time, there was a drafter.",
    "  two spaces,  a tab\tand\n\na line ",
    "12345 3.14 naïve Žofie 猫 🐈‍⬛ ½",
    "def forward(x):\n    return x ** 2  # tokens",
    "tokens tokens tokenstokens aaaaaaaa",
    "",
    " ",
]


def main() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join((ROOT / name).read_text() for name in CORPUS).split("\n")),
        model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, character_coverage=0.99, user_defined_symbols=["<tool>"],
    )  # fmt: skip
    words = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(words.vocab_size())
    kinds = [
        2 if words.is_unknown(i) else 3 if words.is_control(i) else 6 if words.is_byte(i) else 1
        for i in ids
    ]
    kinds[words.piece_to_id("<tool>")] = 4
    recorded = {
        "tokens": [words.id_to_piece(i) for i in ids],
        "scores": [words.get_score(i) for i in ids],
        "token_type": kinds,
        "texts": [[text, words.encode(text)] for text in TEXTS],
    }
    FILE.write_text(json.dumps(recorded, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
