"""What the README shows in Python runs as it stands there."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_blocks_of_python_run_one_after_the_other(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 7
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert capsys.readouterr().out.strip()
    plain = names["jspec"].decode(
        names["model"], names["params"], names["prompt"], max_new_tokens=32
    )
    np.testing.assert_array_equal(names["result"].tokens, plain.tokens)
