"""The results: rows that benches wrote, and the pages, tables and pictures that are made of them.

Each page `NAME.md` has a module `NAME.py`, whose `tables()` and `pictures()` say what stands in its
marked regions and in `pictures/`. `python -m benchmarks.results` writes them from `rows/*.jsonl`.
"""
