"""A friend's requests while hostile clients are at work.

python -m benchmarks.serving.hostile                      # a minute of eight hostile clients
"""

import asyncio
import http.client
import json
import multiprocessing
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
import typer

from benchmarks.harness import command, console, headline
from benchmarks.serving.attacks import Attack, Told, serving
from benchmarks.serving.process import ServerProcess


def main(
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-800k",
    clients: Annotated[int, typer.Option(min=1, help="hostile clients at once")] = 8,
    seconds: Annotated[int, typer.Option(min=1, help="of the attack")] = 60,
    seed: Annotated[int, typer.Option(help="of what is sent")] = 0,
) -> None:
    """Says what a friend waits alone, alongside hostile clients, and afterwards."""
    headline(f"{model}: {clients} hostile clients, {seconds} s")
    with serving(model) as serve, ServerProcess(serve) as server:
        _waits(server.url, model, 20)  # what is read and made once is
        alone, before = _waits(server.url, model, 50), server.megabytes
        here, there = multiprocessing.Pipe(duplex=False)
        arguments = server.url, model, clients, seconds, seed, there
        attack = multiprocessing.get_context("spawn").Process(target=_attack, args=arguments)
        attack.start()
        here.recv()  # it has begun
        attacked: list[float | None] = []
        most, forms, began = before, 0.0, time.monotonic()
        while time.monotonic() - began < seconds:
            attacked += _waits(server.url, model, 1)
            most = max(most, server.megabytes)
            forms = max(forms, _largest_form(server.process.pid))
        told: Told = here.recv()
        attack.join()
        after = _waits(server.url, model, 50)
        code = server.end()
    lost = sum(wait is None for wait in (*alone, *attacked, *after))
    tracebacks = sum("Traceback" in line for line in server.said)
    waits = {"alone": alone, "under attack": attacked, "afterwards": after}
    for name, values in waits.items():
        known = np.array([value for value in values if value is not None])
        console.print(
            f"{name}: {len(values)} requests, median {1000 * np.median(known):.0f} ms, 9 of 10 "
            f"within {1000 * np.quantile(known, 0.9):.0f} ms, all within {1000 * known.max():.0f}"
        )
    for kind, statuses in sorted(told.statuses.items()):
        counted = {status: statuses.count(status) for status in sorted(set(statuses))}
        console.print(f"  {kind}: {counted}, at most {told.seconds[kind]:.1f} s")
    middle = [np.median([w for w in waits[name] if w is not None]) for name in list(waits)[:2]]
    console.print(
        f"median under attack over alone: {middle[1] / middle[0]:.1f}; {lost} lost; memory "
        f"{before:.0f} MB, at most {most:.0f} ({most / before:.2f} times); a form's processes at "
        f"most {forms:.0f} MB; {tracebacks} tracebacks; exit code {code}"
    )
    wrong = sum(500 in statuses for statuses in told.statuses.values())
    if lost or tracebacks or code or wrong:
        raise SystemExit(1)


def _waits(url: str, model: str, count: int) -> list[float | None]:
    """Returns the seconds of short completions, one after the other; None: it was lost."""
    parts, found = urlsplit(url), []
    body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 16})
    for _ in range(count):
        began, answered = time.perf_counter(), False
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
            head = {"Content-Type": "application/json"}
            while not answered:
                connection.request("POST", "/v1/completions", body, head)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 429:
                    answered = answer.status == 200
                    break
                time.sleep(0.1)  # it is asked again, as clients do, and all of it counts
            connection.close()
        found.append(time.perf_counter() - began if answered else None)
    return found


def _attack(url: str, model: str, clients: int, seconds: float, seed: int, there: Any) -> None:
    """Runs the process of the hostile clients."""
    attack = Attack(url, model, seed)
    there.send(None)
    asyncio.run(attack.run(clients, seconds))
    there.send(attack.told)


def _largest_form(server: int) -> float:
    """Returns megabytes of its own that a process holds which makes a form, with those below it."""
    parents: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(file.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(file.parent.name))
    # The server starts the process that others are forked from, which makes nothing itself.
    makers = [one for below in parents.get(server, []) for one in parents.get(below, [])]
    return max((sum(map(_own, (one, *parents.get(one, [])))) for one in makers), default=0.0)


def _own(process: int) -> float:
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
        kinds = ("Private_Clean:", "Private_Dirty:")
        return sum(int(text.split(kind)[1].split()[0]) for kind in kinds) / 1024
    return 0.0


if __name__ == "__main__":
    command(main)
