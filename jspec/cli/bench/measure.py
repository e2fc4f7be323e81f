"""The measuring loop: question by question, all contenders in turn."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jspec.cli.bench.chat import Wording
from jspec.cli.bench.contenders import Contender, Reply
from jspec.cli.bench.ledger import Ledger, Row
from jspec.cli.bench.questions import Question
from jspec.cli.bench.settings import PLAIN, BenchSettings
from jspec.cli.bench.statistics import first_difference, speedup
from jspec.cli.bench.timing import Timed, in_turn
from jspec.models import reasoning
from jspec.models.detokenise import Detokeniser
from jspec.sessions.batches import Group, groups


@dataclass
class ReportedContender:
    """A contender and what the report has to know of it."""

    contender: Contender
    is_peer: bool = False
    same_tokens: bool = True
    """True if its tokens have to be plain decoding's."""


@dataclass
class Bench:
    """A bench that is about to run."""

    entries: dict[str, ReportedContender]
    questions: Sequence[Question]
    wording: Wording
    tokenizer: Any
    context: int | None
    settings: BenchSettings
    ledger: Ledger
    run: str
    say: Callable[[str], None]
    stopped: dict[str, str] = field(default_factory=dict)
    """Peers that failed, and of what."""

    def measure(self) -> None:
        """Measures what the ledger does not have yet; answers are given again for the memory."""
        measured = {
            (row["method"], row["prompt"])
            for row in self.ledger.find(run=self.run)
            if row.get("turn") == 0
        }
        parts = list(self._parts())
        missing = [
            [name for name in self.entries if any((name, i) not in measured for i in part)]
            for part in parts
        ]
        count, again_told = 0, False
        for place, part in enumerate(parts):
            count += len(part)
            now = [name for name in missing[place] if name not in self.stopped]
            later = {name for names in missing[place:] for name in names}
            learners = [n for n in self.entries if n in later and self.entries[n].contender.learns]
            again = [name for name in learners if name not in now]
            if not now and not again:
                continue
            if again and not again_told:
                self.say("finished prompts are answered again, untimed, for the drafters' memory")
                again_told = True
            rows = self._ask(part, now, again)
            # A part is whole in the file where its first turn is: that is written last.
            self.ledger.extend(rows[::-1])
            if rows:
                self.say(f"{count}/{len(self.questions)} {self._describe(part, rows)}")

    def _parts(self) -> Iterator[list[int]]:
        """Yields the places of questions of one class that run together."""
        size, start = self.settings.run.batch_size, 0
        for end in range(1, len(self.questions) + 1):
            if (
                end == len(self.questions)
                or end - start == size
                or self.questions[end].category != self.questions[start].category
            ):
                yield list(range(start, end))
                start = end

    def _ask(self, part: Sequence[int], now: Sequence[str], again: Sequence[str]) -> list[Row]:
        """Measures these questions, turn by turn; the methods of `again` only learn from them."""
        answers: dict[int, list[str]] = {place: [] for place in part}
        rows: list[Row] = []
        for turn in range(self.settings.turns):
            prompts = dict(self._prompts(answers, turn))
            if not prompts:
                break
            group = self._group(prompts, turn)
            timed = self._take_turns(group, [PLAIN, *now] if now else [])
            for name in again:
                contender = self.entries[name].contender
                contender.remember(contender.answer(group))
            replies = {
                name: self.entries[name].contender.replies(group, answer.value)
                for name, (answer, _) in timed.items()
            }
            for name in timed:
                if name in now:
                    rows += self._rows(name, prompts, turn, timed, replies)
            if turn + 1 < self.settings.turns:
                plain_replies = replies.get(PLAIN) or self._plain(group)
                for (place, prompt), reply in zip(prompts.items(), plain_replies, strict=True):
                    # Neither the end token nor thoughts are of the conversation.
                    tokens = reply.tokens[: -1 if reply.finish_reason == "stop" else None]
                    text = Detokeniser(self.tokenizer, prompt).finish(tokens)
                    marks = reasoning.marks_of(self.tokenizer)
                    parts = reasoning.parts(self.tokenizer, marks, prompt)
                    answers[place].append(parts.read(text, True)[1])
        return rows

    def _plain(self, group: Group) -> list[Reply]:
        """Returns plain decoding's answers, which the next turn follows."""
        contender = self.entries[PLAIN].contender
        return contender.replies(group, contender.answer(group))

    def _prompts(
        self, answers: Mapping[int, list[str]], turn: int
    ) -> Iterator[tuple[int, list[int]]]:
        """Yields the prompts of a turn, of the conversations that have it and fit the context."""
        for place, replies in answers.items():
            turns = self.questions[place].turns
            if turn >= len(turns) or len(replies) < turn:
                continue
            ids = self.wording.ids(turns[: turn + 1], replies)
            if fits(ids, self.settings.run.max_new_tokens, self.context):
                yield place, ids

    def _group(self, prompts: Mapping[int, list[int]], turn: int) -> Group:
        (group,) = groups(list(prompts.values()), self.settings.run)
        # Randomness follows from the question and its turn, whatever runs together.
        return replace(group, rows=[place + turn * len(self.questions) for place in prompts])

    def _take_turns(
        self, group: Group, names: Sequence[str]
    ) -> dict[str, tuple[Timed[Any], Timed[Any]]]:
        """Returns each contender's times for the whole answer and for the prompt alone."""
        going = []
        for name in dict.fromkeys(names):
            try:
                self.entries[name].contender.warm_up(group)
                going.append(name)
            except Exception as error:
                # Whatever other people's code raises is a matter of its column.
                if not self.entries[name].is_peer:
                    raise
                self.stopped[name] = f"it stopped: {type(error).__name__}: {error}"
        parts = {}
        for name in going:
            contender = self.entries[name].contender
            parts[name, "prefill"] = lambda c=contender: c.prefill(group)
            parts[name, "whole"] = lambda c=contender: c.answer(group)
        timed = in_turn(parts, self.settings.repeats) if parts else {}
        for name in going:
            self.entries[name].contender.remember(timed[name, "whole"].value)
        return {name: (timed[name, "whole"], timed[name, "prefill"]) for name in going}

    def _rows(
        self,
        name: str,
        prompts: Mapping[int, list[int]],
        turn: int,
        timed: Mapping[str, tuple[Timed[Any], Timed[Any]]],
        replies: Mapping[str, list[Reply]],
    ) -> Iterator[Row]:
        """Yields one row a prompt; the seconds are those of all that ran together."""
        entry = self.entries[name]
        sums = {key: sum(len(reply.tokens) for reply in replies[key]) for key in (name, PLAIN)}
        for place, reply, plain in zip(prompts, replies[name], replies[PLAIN], strict=True):
            question = self.questions[place]
            difference = first_difference(reply.tokens, plain.tokens)
            yield {
                "run": self.run,
                "method": name,
                "peer": entry.is_peer,
                "prompt": place,
                "question": question.name,
                "category": question.category,
                "turn": turn,
                "num_prompt_tokens": len(prompts[place]),
                "num_tokens": len(reply.tokens),
                "num_rounds": reply.num_rounds,
                "finish_reason": reply.finish_reason,
                "seconds": timed[name][0].seconds,
                "prefill_seconds": timed[name][1].seconds,
                "plain_seconds": timed[PLAIN][0].seconds,
                "plain_prefill_seconds": timed[PLAIN][1].seconds,
                "num_together": len(prompts),
                "num_tokens_together": sums[name],
                "plain_num_tokens_together": sums[PLAIN],
                "compared": entry.same_tokens,
                "first_difference": difference if entry.same_tokens else None,
                "metrics": reply.metrics,
                "tokens": reply.tokens,
            }

    def _describe(self, part: Sequence[int], rows: Sequence[Row]) -> str:
        """Returns one line about a question that was measured."""
        names = ", ".join(self.questions[place].name for place in part)
        gains = {row["method"]: speedup(row) for row in rows if row["method"] != PLAIN}
        text = " · ".join(f"{name} {gain:.2f}x" for name, gain in gains.items())
        return f"{self.questions[part[0]].category} {names}: {text or PLAIN}"


def fits(ids: Sequence[int], max_new_tokens: int, context: int | None) -> bool:
    """Returns whether a prompt leaves room for its answer."""
    return context is None or len(ids) + max_new_tokens <= context
