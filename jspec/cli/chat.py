"""A conversation in the terminal: questions from standard input, streamed answers."""

import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jspec._validate.errors import InputError
from jspec.cli.round_programs import RoundPrograms
from jspec.cli.text_output import AnswerPieces
from jspec.sessions import conversations, terminal
from jspec.sessions.batches import Group, Runner, groups, interruptible
from jspec.sessions.conversations import Drop
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session
from jspec.types import Status

if TYPE_CHECKING:
    from jspec.sessions.conversations import Message
    from jspec.types import State

T = TypeVar("T")

_ROOM = 4096
"""Initial slots of a conversation, if the context has as many. Empty slots only cost memory,
and turns of equal capacity share their programs.
"""

HELP = """\
/reset         begin a new conversation
/system TEXT   set the system message, and begin anew; without TEXT there is none
/history       show the conversation
/exit          end, as Ctrl-D does
Ctrl-C ends a reply."""


class Conversation:
    """The messages so far, and the model that answers them."""

    def __init__(
        self,
        session: Session,
        settings: RunSettings,
        system: str | None = None,
        drop: Drop = Drop.NONE,
    ):
        self._drop = drop
        self._session = conversations.answering(session)
        self._settings = settings
        self._runner = Runner(self._session, settings)
        self._programs = RoundPrograms(self._runner)
        self.messages: list[Message] = []
        self._state: State | None = None
        """The end of the last answer; None if there is nothing to continue."""
        self._tokens: list[int] = []
        """Tokens that the state has read and written."""
        self._text: str | None = None
        """The same as the template writes it, without an end of turn; None if that is not known."""
        self.reset(system)
        messages = conversations.from_prompt("Hi", system)
        self._greeting = conversations.render(session.target, messages)

    def prepare(self) -> None:
        """Compiles what the first answer runs, while its question is still being written."""
        self._programs.prepare(self._group(self._greeting), self._room(len(self._greeting)))

    def finish(self) -> None:
        """Waits until all of it is compiled."""
        self._programs.finish()

    def close(self) -> None:
        """Ends what is compiled for an answer that nobody waits for any more."""
        self._programs.close()

    def reset(self, system: str | None) -> None:
        """Begins anew; the drafter keeps what it learnt."""
        self.system = system
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    def answer(self, question: str, screen: terminal.Screen) -> str:
        """Shows the answer to a question as it comes, and keeps both."""
        try:
            figures = self._answer(question, screen)
        finally:
            self._programs.go_on()
        if (complaint := self._programs.complaint()) is not None:
            terminal.note(f"jspec: {complaint}")
        return figures

    def _answer(self, question: str, screen: terminal.Screen) -> str:
        every = [*self.messages, {"role": "user", "content": question}]
        messages = self._fitting(every)
        text, prefix, new = self._prompt(messages)
        conversations.note_dropped(len(every) - len(messages))
        answer = AnswerPieces(self._session, [*prefix, *new])
        count, rounds, status = 0, 0, int(Status.RUNNING)
        began = time.perf_counter()
        first = began
        for tokens, status in self._rounds(prefix, new):
            self._tokens += tokens
            first = first if rounds else time.perf_counter()
            count, rounds = count + len(tokens), rounds + 1
            drafted = [True] * (len(tokens) - 1) + [False]
            for piece in answer.push(tokens, drafted, status):
                screen.text(*piece)
            self._programs.go_on()
        if status == Status.RUNNING:  # Ctrl-C ended it
            for piece in answer.push([], [], Status.LIMIT):
                screen.text(*piece)
        screen.line()
        self._text = text + answer.text
        if self._state is not None:
            self._runner.write(self._state.drafter_state)
        self.messages = [*messages, {"role": "assistant", "content": answer.content}]
        return _figures(count, rounds, first - began, time.perf_counter() - first)

    def _fitting(self, messages: list["Message"]) -> list["Message"]:
        """Returns the messages without the turns that are dropped."""
        target = self._session.target

        def count(some: Sequence["Message"]) -> int:
            return len(conversations.render(target, some))

        longest = self._settings.max_new_tokens
        return conversations.fitting(messages, count, target.model.context, longest, self._drop)

    def _prompt(self, messages: list["Message"]) -> tuple[str, list[int], list[int]]:
        """Returns the conversation as text, its known tokens, and the tokens to read."""
        text = conversations.write(self._session.target, messages)
        prefix = self._tokens
        new = self._beyond(text)
        if new is None:
            prefix, new = [], conversations.encode(self._session.target, text)
        size, context = len(prefix) + len(new), self._session.target.model.context
        if context is not None and size >= context:
            raise InputError(
                f"the conversation has {size} tokens and the model's context is {context}; "
                "/reset begins a new one, and --drop says which turns may go instead"
            )
        return text, prefix, new

    def _beyond(self, prompt: str) -> list[int] | None:
        """Returns the tokens of a text behind what the state knows; None if it is read anew."""
        state, text = self._state, self._text
        if state is None or text is None or not prompt.startswith(text):
            return None
        new = conversations.encode(self._session.target, prompt.removeprefix(text))
        if self._tokens[-1] in self._session.target.eos:
            # The template writes the end of the turn too.
            if new[:1] != self._tokens[-1:]:
                return None
            new = new[1:]
        need = len(self._tokens) + len(new) + self._settings.max_new_tokens
        room = state.capacity
        return new if new and (need <= room or room == self._session.target.model.context) else None

    def _rounds(self, prefix: list[int], new: list[int]) -> Iterator[tuple[list[int], int]]:
        """Yields each round's tokens and status until the answer ends, or Ctrl-C ends it."""
        import jax

        import jspec

        self._programs.wait()
        arguments, rounds = self._arguments(prefix, new)
        # The prompt's pass takes its state: nothing is left of an answer that ends before a round.
        self._state, self._tokens, self._text = None, [*prefix, *new], None
        self._runner.forget()
        state, stopped = _finish(lambda: jspec.prefill(**arguments))
        end, status = 0, int(jax.device_get(state.status)[0])
        while status == Status.RUNNING and not stopped:
            state, stopped = _finish(lambda state=state: jax.block_until_ready(rounds(state)))
            self._state, begin = state, end
            fields = jax.device_get((state.tokens, state.lengths, state.status))
            tokens, end, status = (field[0] for field in fields)
            yield tokens[begin:end].tolist(), int(status)

    def _arguments(
        self, prefix: list[int], new: list[int]
    ) -> tuple[dict[str, Any], Callable[["State"], "State"]]:
        """Returns the arguments of `jspec.prefill`, behind known tokens for the new ones alone, and
        what runs a round.
        """
        group, state = self._group(new), self._state
        if prefix and state is not None:
            capacity = state.capacity
            arguments = self._runner.arguments(group) | {
                "earlier": state, "drafter_state": None, "policy_state": None,
            }  # fmt: skip
        else:
            if state is not None:
                self._runner.keep(state)
            capacity = self._room(len(new))
            arguments = self._runner.arguments(group) | {"capacity": capacity}
        return arguments, self._programs.rounds(group, capacity)

    def _group(self, tokens: list[int]) -> Group:
        """Returns the prompt of one answer."""
        (group,) = groups([tokens], self._settings)
        return group

    def _room(self, size: int) -> int:
        """Returns the slots of a conversation that begins with so many tokens."""
        from jspec.round.request import bucket

        context = self._session.target.model.context
        room = max(_ROOM, bucket(size + self._settings.max_new_tokens))
        return room if context is None else min(room, context)


def talk(
    session: Session, settings: RunSettings, system: str | None = None, drop: Drop = Drop.NONE
) -> None:
    """Asks for questions until there are no more."""
    conversation = Conversation(session, settings, system, drop)
    conversation.prepare()
    screen = terminal.Screen()
    try:
        _converse(conversation, screen, session.choice.method.drafts)
    finally:
        conversation.close()


def _converse(conversation: Conversation, screen: terminal.Screen, drafts: bool) -> None:
    if sys.stdin.isatty():
        screen.line("/help lists the commands, Ctrl-D ends.")
        screen.legend(drafts)
    for line in _questions():
        command, _, rest = line.strip().partition(" ")
        if command == "/exit":
            return
        if command == "/reset":
            conversation.reset(conversation.system)
        elif command == "/system":
            conversation.reset(rest.strip() or None)
        elif command == "/history":
            for message in conversation.messages:
                screen.line(f"{message['role']}: {message['content']}")
        elif command.startswith("/"):
            screen.line(HELP)
        elif line.strip():
            try:
                print(conversation.answer(line, screen), file=sys.stderr)
            except InputError as error:
                print(f"jspec: {error}", file=sys.stderr)
            except KeyboardInterrupt:  # between two rounds, or twice: the answer is not kept
                screen.line()


def _questions() -> Iterator[str]:
    """Yields lines of standard input; Ctrl-C drops the line that is being written."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are not text
    prompt = "> " if sys.stdin.isatty() else ""
    if prompt:
        import readline  # noqa: F401  (line editing, and the arrows for earlier lines)
    while True:
        try:
            with terminal.reading():
                line = input(prompt)
            yield line
        except EOFError:
            if prompt:
                print()
            return
        except KeyboardInterrupt:
            if not prompt:
                raise
            print()


def _finish(work: Callable[[], T]) -> tuple[T, bool]:
    """Returns the result of `work` and whether Ctrl-C came meanwhile. A computation that began
    is awaited, since it has donated its state.
    """
    results: list[T] = []
    try:
        interruptible(lambda: results.append(work()))
    except KeyboardInterrupt:
        interruptible(lambda: None)  # there is one worker: what was begun is done before
        if not results:  # it had not begun, or failed
            raise
        return results[0], True
    return results[0], False


def _figures(count: int, rounds: int, waited: float, seconds: float) -> str:
    """Returns the line under an answer; the speed excludes the first round."""
    if not rounds:
        return "[ended]"
    speed = (
        f" · {(count / rounds) * (rounds - 1) / seconds:.1f} tokens per second"
        if rounds > 1 and seconds > 0
        else ""
    )
    return (
        f"[{count} tokens{speed} · {count / rounds:.2f} tokens per forward pass (plain: 1) · "
        f"first after {waited:.1f} s]"
    )
