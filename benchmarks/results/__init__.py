"""The results: rows that benches wrote, and pages, tables and pictures made of them.

Each paper has a page `NAME.md` and its data `NAME.toml`: the claims, what the paper has, and which
rows the tables of the page's marked regions and the pictures are made of. `python -m
benchmarks.results` writes them all from `rows/*.jsonl`.
"""
