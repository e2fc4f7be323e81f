"""`jspec serve` as a process of its own, and what it says of itself."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

START = "from jspec.cli.main import main; main()"
_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}"
)
"""It shows tools, and cuts what was thought."""


@contextmanager
def chat_options(model: str) -> Iterator[list[str]]:
    """Yields the options of a server that has chats, too."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(_TEMPLATE)
        template.flush()
        options = ["--model", model, "--rows", "8", "--max-model-len", "256"]
        yield [*options, "--chat-template", template.name]


class ServerProcess:
    """A server, from its start until it is told to end.

    Args:
        options: of `jspec serve`.
        environment: alongside this process' own.
    """

    def __init__(self, options: Sequence[str], environment: Mapping[str, str] | None = None):
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `kill`)
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, "serve", "--port", "0", *options],
            stdout=self.log, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        assert self.process.stderr is not None
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"answers at (http://\S+)", line):
                self.url = found[1]
                self._reader = threading.Thread(target=self._read, daemon=True)
                self._reader.start()
                return
        raise RuntimeError(f"the server did not start: {''.join(self.said)}")

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _read(self) -> None:
        """Takes what it says later: a pipe that nobody reads would hold it up."""
        assert self.process.stderr is not None
        with suppress(ValueError):  # it is closed by `kill`
            self.said.extend(self.process.stderr)

    def figures(self) -> dict[str, float]:
        """Returns what /metrics shows, by name; those with labels of their own are left out."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        found = re.findall(r'^([\w:]+)\{model_name="[^"]*"\} (\S+)$', text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    @property
    def megabytes(self) -> float:
        """The memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def lines(self) -> list[dict[str, Any]]:
        """Returns the lines of its log."""
        self.log.seek(0)
        return [json.loads(line) for line in self.log.read().splitlines()]

    def end(self, seconds: float = 60) -> int:
        """Tells it to end, and waits. Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(seconds)
        self.read_all()
        return code

    def read_all(self) -> None:
        """Waits until all is read that it said, which has ended."""
        self._reader.join(10)

    def kill(self) -> None:
        """Ends it at once, if it has not ended."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        for file in (self.process.stderr, self.log):
            file.close()
