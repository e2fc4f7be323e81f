"""The server as a process: models are loaded, programs compiled, and then it answers."""

import gc
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jspec._validate.errors import InputError
from jspec.methods import DEFAULT
from jspec.serve.limits import ServerLimits
from jspec.sessions.generation_config import GenerationConfig

if TYPE_CHECKING:
    import socket

    from jspec.models import Loaded
    from jspec.serve.device import EngineDevice
    from jspec.serve.service import Service
    from jspec.sessions.memory_file import MemoryFile
    from jspec.sessions.method_choice import Choice
    from jspec.sessions.session import Session

_MEGABYTE = 2**20
_CONTEXT = 2048
"""Tokens of a row if the model's context is longer and none were asked for."""
_FEW_ROWS = 4
_NARROW = (0, 3)
"""Drafted nodes that a round of each row may verify where there are more rows."""
_IDLE_SECONDS = 75
"""After which a connection without a request is closed: later than clients close it
themselves (the client `openai` after 5), since a request that crosses the closing is lost."""
_ANSWER_SECONDS = 10
"""Seconds in which clients whose answers are cut are told of it: a turn of the device may run."""


@dataclass(frozen=True)
class ServeSettings:
    """The settings of a server, alongside its models."""

    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    rows: int = 8
    max_model_len: int | None = None
    api_key: str | None = None
    rounds: int = 8
    max_queue: int = 128
    prefill_tokens: int = 256
    prefix_megabytes: int = 512
    max_logprobs: int = 20
    grammar_states: int = 1024
    grammar_classes: int = 256
    stop_states: int = 1024
    stop_classes: int = 512
    penalties: bool = True
    limits: ServerLimits = ServerLimits()  # noqa: RUF009 (frozen)
    chat_template: Path | None = None
    tool_call_parser: str | None = None
    drain_seconds: int = 60
    generation_config: GenerationConfig = GenerationConfig.AUTO
    memory: Path | None = None
    adapters: tuple[str, ...] = ()

    def __post_init__(self):
        from jspec._validate.arguments import check_integer
        from jspec.serve import calls

        if self.name in self.adapters:
            raise InputError(
                f"--lora names an adapter {self.name!r:.80}, which is the model's own name; give "
                "one of them another"
            )
        for option, value, low, high in (
            ("--port", self.port, 0, 65535),
            ("--rows", self.rows, 1, 4096),
            ("--max-model-len", self.max_model_len, 2, 2**24),
            ("--rounds", self.rounds, 1, 1024),
            ("--max-queue", self.max_queue, 0, 2**20),
            ("--prefill-tokens", self.prefill_tokens, 1, 2**20),
            ("--prefix-megabytes", self.prefix_megabytes, 0, 2**24),
            ("--max-logprobs", self.max_logprobs, -1, 1000),
            ("--max-grammar-states", self.grammar_states, 0, 2**20),
            ("--max-grammar-classes", self.grammar_classes, 2, 2**16),
            ("--max-stop-states", self.stop_states, 1, 2**20),
            ("--max-stop-classes", self.stop_classes, 2, 2**16),
            ("--drain-seconds", self.drain_seconds, 0, 2**20),
            ("--max-forms", self.limits.forms, 1, 1024),
            ("--form-seconds", self.limits.form_seconds, 1, 2**20),
            ("--form-megabytes", self.limits.form_megabytes, 16, 2**20),
            ("--form-kilobytes", self.limits.form_kilobytes, 1, 2**12),
            ("--max-form-queue", self.limits.form_queue, 0, 2**20),
        ):
            if value is not None:
                check_integer(option, value, low, high)
        if self.api_key is not None and not _is_header(self.api_key):
            raise InputError(
                f"--api-key is {self.api_key!r:.40}; pass printable ASCII without spaces around "
                "it, or leave it out"
            )
        if self.tool_call_parser not in (None, *calls.PARSERS):
            raise InputError(
                f"--tool-call-parser is {self.tool_call_parser!r:.60}; give one of "
                f"{', '.join(calls.PARSERS)}"
            )


def _is_header(key: str) -> bool:
    """Returns whether a header of HTTP can bring a key."""
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()


def serve(session: "Session", settings: ServeSettings, listening: "socket.socket") -> NoReturn:
    """Answers requests until SIGTERM or SIGINT, ends what it has begun, and then the process."""
    import uvicorn

    class Server(uvicorn.Server):
        """Says what a signal begins; the scheduler answers what is not done in time."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            seconds = 0 if self.should_exit else settings.drain_seconds
            if not self.should_exit:
                say(f"ending what was begun, for at most {seconds} s; Ctrl-C again ends now")
            self.should_exit = True
            # In another thread: this one may hold the lock that it takes.
            timer = threading.Timer(seconds, service.scheduler.stop)
            timer.daemon = True
            timer.start()

    service = service_of(session, settings)
    # What is here now stays: without this, each full collection walks over all of it.
    gc.collect()
    gc.freeze()
    logging.basicConfig(format="jspec: %(message)s", stream=sys.stderr)
    config = uvicorn.Config(
        service.application(),
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=settings.drain_seconds + _ANSWER_SECONDS,
    )
    address, port = listening.getsockname()[:2]
    host = f"[{address}]" if ":" in address else address
    say(f"{settings.name} answers at http://{host}:{port}")
    # One that comes when all is done changes nothing.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    Server(config).run(sockets=[listening])
    unfinished = service.scheduler.num_unfinished
    if unfinished:
        say(f"answers that were cut: {unfinished}")
    elif service.is_working:
        say("the time to end what was begun is over")
    else:
        say("all that was begun is answered")
    # Nothing ends a thread but the process: at Python's own end it would go on in code that is
    # being taken down, which takes seconds on a busy machine besides.
    sys.stdout.flush()
    os._exit(0)


def service_of(session: "Session", settings: ServeSettings) -> "Service":
    """Returns the compiled server without HTTP; its `application` is for any ASGI server."""
    from jspec.serve.compiled import CompileCounter
    from jspec.serve.request_parser import RequestParser
    from jspec.serve.scheduler import Scheduler
    from jspec.serve.service import Served, Service
    from jspec.sessions.session import with_target

    compiled = CompileCounter()
    target = chatting(session.target, settings.chat_template)
    sampling = settings.generation_config.sampling(target)
    if not settings.penalties and sampling.get("repetition_penalty", 1) != 1:
        raise InputError(
            f"{target.generation.source} has a repetition_penalty, for which --no-penalties leaves "
            "no room; leave that out, or add --generation-config none"
        )
    device, memory = device_of(with_target(session, target), settings)
    say("compiling; a first start takes minutes, and later ones find its programs on disk")
    row_bytes = device.warm_up()
    capacity = settings.prefix_megabytes * _MEGABYTE // row_bytes
    say(_memory(device, settings, row_bytes, capacity))
    engine = device.engine
    parser = _call_parser(target, settings)
    request_parser = RequestParser(
        target, engine.capacity, engine.room, parser, settings.limits, sampling
    )
    request_parser.forms.warm_up()
    return Service(
        Served(settings.name, settings.api_key, int(time.time()), settings.adapters),
        request_parser,
        lambda deliver: Scheduler(
            device,
            deliver,
            max_waiting=settings.max_queue,
            prefill_tokens=settings.prefill_tokens,
            capacity=capacity,
        ),
        compiled.since(compiled.count),
        lambda line: print(line, flush=True),
        lambda: None if memory is None else keep(memory, device),
    )


def say(message: str) -> None:
    """Prints a line for whoever started the server."""
    print(f"jspec: {message}", file=sys.stderr, flush=True)


def keep(memory: "MemoryFile", device: "EngineDevice") -> None:
    """Writes what the drafter has learnt, or says why not."""
    try:
        memory.write(device.learnt)
    except OSError as error:
        say(f"what the drafter has learnt is not kept: {error}")


def chatting(target: "Loaded", template: Path | None) -> "Loaded":
    """Returns the model with its end tokens and chat template."""
    from jspec.models.chat_template import ChatTemplate
    from jspec.sessions import conversations

    if template is not None:
        try:
            text = template.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--chat-template {template} cannot be read ({error})") from None
        special_tokens = {} if target.chat is None else target.chat.special_tokens
        chat = ChatTemplate(
            text, target.tokenizer, special_tokens, f"the chat template in {template}"
        )
        target = replace(target, chat=chat)
    if target.chat is not None:
        # What is wrong with it is said here, with its file, which clients are not to read.
        try:
            target.chat.check_syntax()
        except InputError as error:
            if template is not None:
                raise
            say(f"chats will be refused: {error}")
        target = replace(target, chat=replace(target.chat, source=ChatTemplate.source))
    return replace(target, eos=conversations.eos(target))


def _call_parser(target: "Loaded", settings: ServeSettings) -> str | None:
    from jspec.serve import calls

    if settings.tool_call_parser is not None or target.chat is None:
        return settings.tool_call_parser
    return calls.parser_of(target.chat.with_tools)


def narrow(choice: "Choice", rows: int) -> "Choice":
    """Returns the method with rounds that so many rows can use, unless its widths were given.

    Each width is a part of the program that takes long to compile with all that requests may ask
    for. On a CPU a round of 8 rows and 15 nodes never pays.
    """
    import jax

    option_names = {option.name for option in choice.method.options}
    sizes = {"widths", "num_speculative_tokens"} & set(choice.options)
    fits = rows < _FEW_ROWS or jax.default_backend() != "cpu"
    if choice.method.name != DEFAULT or sizes or fits or "widths" not in option_names:
        return choice
    return replace(choice, options={**choice.options, "widths": _NARROW})


def device_of(
    session: "Session", settings: ServeSettings
) -> tuple["EngineDevice", "MemoryFile | None"]:
    """Returns the rows of a server, and the file that keeps what its drafter learns."""
    import jspec
    from jspec._validate.arguments import check_integer
    from jspec.processors import banned_sequences
    from jspec.processors.grammar import Capacity
    from jspec.serve.device import NUM_BIASES, NUM_STOP_TOKENS, EngineDevice
    from jspec.sessions.memory_file import MemoryFile

    llm, target = session.llm, session.target
    context = target.model.context
    capacity = settings.max_model_len or min(context or _CONTEXT, _CONTEXT)
    check_integer("--max-model-len", capacity, 2, context, "the model's context")
    words = settings.generation_config.banned_sequences(target)
    room = jspec.Room(
        min_tokens=settings.penalties,
        penalties=settings.penalties,
        num_biases=NUM_BIASES if settings.penalties else 0,
        num_end_tokens=max(NUM_STOP_TOKENS, len(target.eos)),
        stop=Capacity(settings.stop_states, settings.stop_classes),
        grammar=Capacity(settings.grammar_states, settings.grammar_classes)
        if settings.grammar_states
        else None,
        logprobs=None if settings.max_logprobs < 0 else settings.max_logprobs,
        processors=[banned_sequences(words)] if words else (),
    )
    # With one width for all rounds, nodes for forced tokens would be verified in each of them.
    if room.grammar is not None and llm.policy.widths:
        llm = llm.with_jump_forward()
    engine = jspec.Engine(
        llm.model, settings.rows, capacity, llm.drafter, room=room, policy=llm.policy
    )
    memory = None if settings.memory is None else MemoryFile(settings.memory, target, llm.drafter)
    drafter_state = None if memory is None else memory.read()
    device = EngineDevice(
        engine,
        target.params,
        llm.drafter_params,
        target.eos,
        settings.rounds,
        drafter_state,
        llm.policy_params,
    )
    return device, memory


def _memory(device: "EngineDevice", settings: ServeSettings, row_bytes: int, capacity: int) -> str:
    memory = device.memory()
    parts = ", ".join(f"{name} {size / _MEGABYTE:.0f} MB" for name, size in memory.items())
    prefixes = min(capacity * row_bytes, settings.prefix_megabytes * _MEGABYTE) / _MEGABYTE
    return (
        f"{device.num_slots} rows of {device.engine.capacity} tokens: {parts}; up to {capacity} "
        f"texts are kept for prompts that begin alike, {prefixes:.0f} MB"
    )
