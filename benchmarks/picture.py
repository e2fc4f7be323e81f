"""The picture of the README: what `auto` gains by class of question, from the results."""

import re
from pathlib import Path
from typing import Annotated
from xml.sax.saxutils import quoteattr

import typer

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/engineering_cpu.md"
OUT = ROOT / "docs/assets/speedups.svg"
SECTION = "## Kernels of a CPU"
WIDTH, LEFT, TOP, ROW, SCALE = 870, 150, 74, 26, 300
FONT = "font-family='ui-sans-serif, system-ui, Helvetica, Arial, sans-serif'"
INK, PALE, LINE, BAR = "#1f2933", "#7b8794", "#c3cbd4", "#2f6fde"


def speedups(results: str) -> tuple[dict[str, float], list[float]]:
    """Returns speed-ups of `auto` over plain decoding by class; least and largest of prompts.

    Args:
        results: the text of results/engineering_cpu.md.
    """
    section = results.partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    overall, spread = re.findall(
        r"^\| `auto` \| .*? \| .*? \| \*\*(\d\.\d+)x\*\* .*\| (.*?) \|$", section, re.MULTILINE
    )[0]
    listed = re.findall(r"By class: (.*?)\. All tokens", section, re.DOTALL)[0]
    classes = {name: float(x) for name, x in re.findall(r"(\w+) (\d\.\d+)", listed)}
    singles = [float(x) for x in spread.split(", ")]
    return {"all questions": float(overall), **classes}, [singles[0], singles[-1]]


def text(x: float, y: float, said: str, anchor: str = "start", size: int = 13, ink: str = INK):
    where = f"x='{x:g}' y='{y:g}' font-size='{size}' fill='{ink}' text-anchor='{anchor}'"
    return f"<text {where} {FONT}>{said}</text>"


def box(x: float, y: float, width: float, height: float, look: str):
    return f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' {look}/>"


def draw(gains: dict[str, float], singles: list[float]) -> str:
    """Returns the picture as SVG: a card with its own background, for light and dark pages.

    Args:
        gains: speed-up by class.
        singles: the least and the largest of single prompts.
    """
    bottom = TOP + ROW * len(gains)
    height = bottom + 48
    told = ", ".join(f"{name} {gain:g}" for name, gain in gains.items())
    head = f"viewBox='0 0 {WIDTH} {height}' role='img' aria-label={quoteattr(told)}"
    setting = "two AMD EPYC cores, kernels in both, float32, greedy, 2026-11-27"
    spread = f"single questions: {singles[0]:.2f}x to {singles[1]:.2f}x; {setting}"
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {head}>",
        box(0.5, 0.5, WIDTH - 1, height - 1, f"rx='10' fill='#ffffff' stroke='{LINE}'"),
        text(24, 32, "Speed of `auto` over plain decoding, with the same tokens", size=17),
        text(24, 53, "SmolLM2-135M, 60 Spec-Bench questions by class, prompt and answer", ink=PALE),
    ]
    for number, (name, gain) in enumerate(gains.items()):
        y, strength = TOP + ROW * number, 0.6 if number else 1
        look = f"rx='3' fill='{BAR}' opacity='{strength}'"
        lines.append(text(LEFT - 10, y + 15, name.replace("_", " "), "end"))
        lines.append(box(LEFT, y + 2, SCALE * gain, ROW - 8, look))
        lines.append(text(LEFT + SCALE * gain + 8, y + 15, f"{gain:.2f}x"))
    lines.append(box(LEFT + SCALE - 0.75, TOP - 4, 1.5, bottom - TOP + 6, f"fill='{INK}'"))
    lines.append(text(LEFT + SCALE, bottom + 17, "plain decoding", "middle", 12, PALE))
    lines.append(text(WIDTH - 24, bottom + 36, spread, "end", 11, PALE))
    return "\n".join([*lines, "</svg>\n"])


def main(out: Annotated[Path, typer.Option(help="Where the SVG goes.")] = OUT) -> None:
    """Draws docs/assets/speedups.svg from the figures of results/engineering_cpu.md."""
    out.write_text(draw(*speedups(RESULTS.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    typer.run(main)
