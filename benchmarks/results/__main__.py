"""The pages of results, with their tables and pictures, from the rows that are kept.

python -m benchmarks.results
"""

from benchmarks.harness import command, console
from benchmarks.results.pages import FOLDER, PICTURES, pages, papers
from benchmarks.results.pictures import pictures


def main() -> None:
    """Writes the regions of RESULTS.md and results/*.md, and their pictures."""
    PICTURES.mkdir(exist_ok=True)
    made = pages()
    for paper in papers().values():
        made |= {PICTURES / name: one.svg() for name, one in pictures(paper).items()}
    for path, text in made.items():
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            console.print(f"written: {path.relative_to(FOLDER.parent)}")
    for picture in set(PICTURES.glob("*.svg")) - set(made):
        picture.unlink()
        console.print(f"removed: {picture.relative_to(FOLDER.parent)}")


if __name__ == "__main__":
    command(main)
