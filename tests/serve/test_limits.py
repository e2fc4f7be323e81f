"""Costs of a request before it has a row: bounds, turns of clients, and ends."""

import asyncio
import multiprocessing
import threading
import time

import fakes
import numpy as np
import pytest
from desk import figures, service
from test_service import _ask, complete

from jspec._validate.errors import InputError
from jspec.models.chat_template import ChatTemplate
from jspec.processors import grammar
from jspec.processors.grammar import Capacity, token_bytes
from jspec.processors.grammar.stops import stop_strings
from jspec.request import Room
from jspec.serve import listening
from jspec.serve.automaton_maker import AutomatonMaker
from jspec.serve.errors import APIError
from jspec.serve.forms import Forms
from jspec.serve.limits import ServerLimits
from jspec.serve.schemas import StructuredOutputs
from jspec.serve.workers import GivenUp, Patience, Workers

EXPLODES = "(a|b)*a(a|b){40}"


def until(condition):
    """Waits until something is so."""
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never was")


class Held:
    """Work that goes on until it is let go."""

    def __init__(self):
        self.go = threading.Event()
        self.began = []

    def of(self, name):
        def work(patience):
            self.began.append(name)
            assert self.go.wait(20)
            return name

        return work


def test_work_waits_for_its_turn():
    async def run():
        workers, held = Workers(2, 2, 5), Held()
        works = [asyncio.ensure_future(workers.run(held.of(n))) for n in range(4)]
        await asyncio.sleep(0.05)
        assert (workers.num_busy, workers.num_waiting) == (2, 2)
        with pytest.raises(APIError, match="too many requests are being read") as refused:
            await workers.run(held.of("one more"))
        assert refused.value.status == 429 and int(refused.value.headers["Retry-After"]) >= 1
        held.go.set()
        assert await asyncio.gather(*works) == list(range(4)) == held.began
        assert (workers.num_busy, workers.num_waiting) == (0, 0)

    asyncio.run(run())


def test_abandoned_work_counts_until_it_has_ended():
    async def run():
        workers, ends = Workers(1, 4, 5), threading.Event()

        def work(patience):
            try:
                while True:
                    patience.check("it")
                    time.sleep(0.005)
            finally:
                assert ends.wait(20)

        doing = asyncio.ensure_future(workers.run(work))
        waits = asyncio.ensure_future(workers.run(lambda _: None))
        await asyncio.sleep(0.05)
        waits.cancel()
        doing.cancel()
        await asyncio.wait([doing, waits])
        assert (workers.num_busy, workers.num_waiting) == (1, 0)
        ends.set()
        assert await workers.run(lambda _: 7) == 7
        assert workers.num_busy == 0

    asyncio.run(run())


@pytest.mark.parametrize("first", ["leaves", "ends"])
def test_who_leaves_as_work_ends_takes_no_turn_and_no_answer(first):
    async def run():
        workers, held, errors = Workers(1, 4, 5), Held(), []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        doing = asyncio.ensure_future(workers.run(held.of("it")))
        await asyncio.sleep(0.02)
        leaves = asyncio.ensure_future(workers.run(lambda _: None))
        patient = asyncio.ensure_future(workers.run(lambda _: 7))
        await asyncio.sleep(0.02)

        def both_in_one_pass():
            if first == "leaves":
                loop.call_soon(leaves.cancel)
            held.go.set()
            time.sleep(0.05)  # the work ends meanwhile
            if first == "ends":
                loop.call_soon(leaves.cancel)

        loop.call_soon(both_in_one_pass)
        answers = await asyncio.wait_for(asyncio.gather(doing, patient), 5)
        assert (answers, leaves.cancelled(), errors) == (["it", 7], True, [])
        assert (workers.num_busy, workers.num_waiting) == (0, 0)

    asyncio.run(run())


def test_all_who_stay_are_answered_while_others_leave(caplog):
    rng = np.random.default_rng(0)

    async def run():
        workers, errors = Workers(3, 500, 5), []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

        async def ask(number, seconds):
            work = workers.run(lambda _: time.sleep(seconds) or number)
            return await asyncio.wait_for(work, None if number % 2 else 4 * rng.random() * seconds)

        asked = [ask(n, 0.004 * rng.random()) for n in range(400)]
        answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)
        assert answers[1::2] == list(range(1, 400, 2)) and errors == []
        assert any(isinstance(answer, TimeoutError) for answer in answers)
        while workers.num_busy:
            await asyncio.sleep(0.01)
        assert workers.num_waiting == 0

    asyncio.run(run())
    assert not caplog.records, "nothing is said of work that nobody waited for"


def test_work_has_an_end():
    patience = Patience(0)
    with pytest.raises(APIError, match="the prompt took more than 0 s; make it smaller, or start"):
        patience.check("the prompt")
    patience.give_up()
    with pytest.raises(GivenUp):
        patience.check("the prompt")


@pytest.fixture(scope="module")
def maker():
    made = AutomatonMaker(token_bytes(fakes.loaded().tokenizer), 1024)
    made.warm_up()
    return made


def test_grammars_made_in_a_process_equal_grammars_made_here(maker):
    asked = [("choices", ("yes", "no"), 64), ("stops", ("ab", "c"), 64), ("regex", "a{2,5}", 64)]
    known = maker.make(asked, Patience(30))
    spelled = token_bytes(fakes.loaded().tokenizer)
    here = [
        grammar.choices(("yes", "no"), spelled), stop_strings(("ab", "c"), spelled),
        grammar.regex("a{2,5}", spelled),
    ]  # fmt: skip
    for there, own in zip(known, here, strict=True):
        assert (there.automaton.table == own.automaton.table).all()
        assert (there.automaton.classes == own.automaton.classes).all()
    with pytest.raises(InputError, match="more than 3 states"):
        maker.make([("choices", ("abcdef",), 3)], Patience(30))


def test_a_process_is_ended_when_its_time_is_over_and_when_nobody_waits(maker):
    with pytest.raises(InputError, match="took more than 1 s; make it smaller, or start the serv"):
        maker.make([("regex", EXPLODES, 64)], Patience(1))
    assert not multiprocessing.active_children()
    patience = Patience(60)
    threading.Timer(0.2, patience.give_up).start()
    with pytest.raises(GivenUp):
        maker.make([("regex", EXPLODES, 64)], patience)
    assert not multiprocessing.active_children()


def test_a_process_has_so_much_memory_and_no_more():
    made = AutomatonMaker(token_bytes(fakes.loaded().tokenizer), 16)
    with pytest.raises(InputError, match="took more than 16 MB; make it smaller, or start the ser"):
        made.make([("choices", tuple(f"{n}" * 40 for n in range(10_000)), 2**20)], Patience(60))


def test_a_process_below_has_the_memory_that_is_left():
    spelled = token_bytes(fakes.loaded().tokenizer)
    room = Room(grammar=Capacity(64, 64), stop=Capacity(64, 64))
    forms = Forms(spelled, room, ServerLimits(form_megabytes=48))
    wanted = forms.specify((), StructuredOutputs(regex=EXPLODES))
    with pytest.raises(APIError, match=r"more than \d\d MB of memory; .* --form-megabytes"):
        forms.make(wanted, Patience(60))


def test_a_form_ends_with_the_client_that_asked_for_it():
    with service() as client:
        body = {"model": "bytes", "prompt": "Hi", "structured_outputs": {"regex": EXPLODES}}
        loop = client.service._loop

        async def departs():
            while not client.service._makers.num_busy:
                await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(_ask(client.app, body, departs), loop).result(20)
        until(lambda: not client.service._makers.num_busy)
        until(lambda: client.lines and client.lines[0]["status"] == 499)
        assert complete(client, structured_outputs={"choice": ["a"]}).status_code == 200


def test_a_long_chat_is_refused_before_it_is_written(monkeypatch):
    def written(*_, **__):
        raise AssertionError("it was written")

    with service() as client:
        for message in (
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "a"}] * 10},
        ):
            with monkeypatch.context() as patch:
                patch.setattr(ChatTemplate, "render", written)
                body = {"model": "bytes", "messages": [message] * (fakes.CONTEXT + 1)}
                got = client.post("/v1/chat/completions", json=body)
            assert got.status_code == 400, got.text
            assert got.json()["error"]["code"] == "context_length_exceeded"
            assert "--max-model-len" in got.json()["error"]["message"]
        body["messages"] = [{"role": "user", "content": "a" * 10_000}]
        assert "bytes of text" in client.post("/v1/chat/completions", json=body).text
        assert "bytes of text" in complete(client, prompt="a" * 10_000).text
        assert complete(client, prompt=["a"] * 200).json()["error"]["param"] == "n"


def test_forms_by_their_size_and_fields_without_number_are_refused():
    with service() as client:
        for form in ({"regex": "a" * 300_000}, {"choice": ["a" * 300_000]}):
            error = complete(client, structured_outputs=form).json()["error"]
            assert "has a form of 300000 letters" in error["message"]
            assert "--form-kilobytes" in error["message"]
        error = complete(client, stop=["ab" * 500]).json()["error"]
        assert error["param"] == "stop" and "--max-stop-states" in error["message"]
        error = complete(client, **{f"a{n}": n for n in range(1000)}).json()["error"]
        assert error["message"] == "the body has 1000 wrong or unknown fields; leave them out"
        body = {"model": "bytes", "messages": [{}] * 100}
        error = client.post("/v1/chat/completions", json=body).json()["error"]
        assert error["param"] == "messages[0].role"


def test_an_overload_health_and_figures_say_when_nothing_is_admitted():
    device = fakes.FakeDevice(1)
    with service(device, max_waiting=1) as client:
        assert client.get("/health").status_code == 200
        device.go.clear()
        asking = [threading.Thread(target=complete, args=(client,)) for _ in range(2)]
        for thread in asking:
            thread.start()
        until(lambda: not client.service.scheduler.has_room)
        assert client.get("/health").status_code == 503
        got = complete(client)
        assert got.status_code == 429 and int(got.headers["retry-after"]) >= 1
        assert got.json()["error"]["type"] == "rate_limit_error"
        device.go.set()
        for thread in asking:
            thread.join(20)
        assert client.get("/health").status_code == 200
        complete(client, prompt="a" * 10_000)
        known = figures(client)
    code = 'jspec:requests_refused_total{code="%s",model_name="bytes",status="%s"}'
    assert known[code % ("server_busy", 429)] == 1
    assert known[code % ("context_length_exceeded", 400)] == 1
    assert known['jspec:forms_running{model_name="bytes"}'] == 0
    assert known['jspec:forms_waiting{model_name="bytes"}'] == 0


def test_a_port_in_use_is_one_sentence():
    taken = listening.bound("127.0.0.1", 0)
    port = taken.getsockname()[1]
    for host, number, said in (
        ("127.0.0.1", port, f"port {port} of 127.0.0.1 is in use; choose another --port"),
        ("no such host", 0, "--host 'no such host' is not an address"),
    ):
        with pytest.raises(InputError, match=said):
            listening.bound(host, number)

    taken.close()
