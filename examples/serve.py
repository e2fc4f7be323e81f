"""A server of your own: HTTP at one end, rows that come and go at the other, queues between.

python examples/serve.py            # answers a few requests of its own, and ends
python examples/serve.py 8000       # curl -d '{"prompt": "Once upon a time", "seed": 7}' :8000

`jspec serve` has what is missing here: conversations, streaming, grammars, limits, metrics.
"""

import json
import queue
import sys
import threading
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jax

import jspec

ROWS, SLOTS, ROUNDS = 4, 256, 8


@dataclass
class Job:
    """One request, and the tokens that have come."""

    prompt: list[int]
    limit: int
    temperature: float
    penalty: float
    seed: int
    tokens: list[int] = field(default_factory=list)
    status: str = ""
    done: threading.Event = field(default_factory=threading.Event)


class Rows:
    """The one thread that owns the device: it fills free rows, steps, and hands out the output."""

    def __init__(self, name: str):
        llm = jspec.LLM(name, "prompt_lookup", num_speculative_tokens=6)
        self.tokenizer = llm.target.tokenizer
        self.engine = llm.engine(
            ROWS,
            SLOTS,
            room=jspec.Room(penalties=True),  # what requests may ask for
        )
        self.waiting: queue.Queue[Job] = queue.Queue(maxsize=64)
        self.jobs: dict[int, Job] = {}

    def arrival(self, job: Job) -> jspec.State:
        """Returns a one-row state after the job's prompt; programs hold nothing of a request."""
        return self.engine.prefill(
            job.prompt,
            jspec.Request(
                max_tokens=job.limit,
                temperature=job.temperature,
                seed=job.seed,
                frequency_penalty=job.penalty,
            ),
        )

    def run(self) -> None:
        """Serves forever: the state of all rows goes from call to call, and is never copied."""
        state = self.engine.init()
        while True:
            while len(self.jobs) < ROWS and not (self.jobs and self.waiting.empty()):
                job = self.waiting.get()  # sleeps where there is nothing to do
                row = min(set(range(ROWS)) - set(self.jobs))
                try:
                    state = self.engine.insert(state, row, self.arrival(job))
                    self.jobs[row] = job
                except jspec.InputError as error:  # one request's trouble is not another's
                    job.status = str(error)
                    job.done.set()
            state, output = self.engine.generate(
                state, rounds=ROUNDS, until_one_ends=not self.waiting.empty()
            )
            output = jax.device_get(output)  # all that the host reads of a step
            for row, job in list(self.jobs.items()):
                job.tokens += output.tokens[row, : output.counts[row]].tolist()
                if output.status[row] != jspec.Status.RUNNING:
                    job.status = jspec.Status(int(output.status[row])).name
                    state = self.engine.free(state, row)
                    self.jobs.pop(row).done.set()


def handler(rows: Rows) -> type[BaseHTTPRequestHandler]:
    """Returns what answers a POST; each runs in a thread of its own."""
    tokenizer = rows.tokenizer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = tokenizer.encode(str(asked["prompt"])).ids
                limit = min(int(asked.get("max_tokens", 32)), SLOTS - len(prompt))
                if limit < 1:
                    return self.answer(400, {"error": f"a row holds {SLOTS} tokens; shorten it"})
                job = Job(
                    prompt,
                    limit,
                    float(asked.get("temperature", 0.0)),
                    float(asked.get("frequency_penalty", 0.0)),
                    int(asked.get("seed", 0)),
                )
                rows.waiting.put_nowait(job)
            except queue.Full:
                return self.answer(429, {"error": "all rows are taken; try again"})
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                return self.answer(400, {"error": f"the request cannot be read: {error!r}"})
            job.done.wait()
            code = 200 if job.status in jspec.Status.__members__ else 400
            self.answer(code, {"text": tokenizer.decode(job.tokens), "status": job.status})

        def answer(self, code: int, body: dict) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_) -> None:
            """Says nothing."""

    return Handler


def ask(port: int, **body) -> dict:
    """Sends one request to the server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}", json.dumps(body).encode()) as answer:
        return json.loads(answer.read())


rows = Rows("jspec-800k")
port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
server = ThreadingHTTPServer(("127.0.0.1", port), handler(rows))
threading.Thread(target=rows.run, daemon=True).start()
if port:
    server.serve_forever()
threading.Thread(target=server.serve_forever, daemon=True).start()
for number, prompt in enumerate(["Once upon a time", "The little dog", "Tom had"]):
    got = ask(server.server_port, prompt=prompt, temperature=0.7, seed=number, max_tokens=24)
    print(f"{prompt!r} ({got['status']}): {got['text']!r}")
