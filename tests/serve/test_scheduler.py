"""The scheduler over a fake device: rows of jobs, their order, and the reading of prompts."""

import threading

import numpy as np
import pytest
from fakes import END, FakeDevice, answer

from jspec.request import Request
from jspec.serve.jobs import Job
from jspec.serve.prefixes import WORTH, Prefixes, common_length
from jspec.serve.scheduler import STOPPING, Busy, Scheduler


class Desk:
    """A scheduler, and what it delivers."""

    def __init__(self, device=None, **settings):
        self.device = device or FakeDevice()
        self.got = {}
        self.scheduler = Scheduler(self.device, self.deliver, **settings)

    def deliver(self, deltas):
        for job, delta in deltas:
            self.got.setdefault(job, []).append(delta)

    def ask(self, prompt, **more):
        fields = {name: more.pop(name) for name in ("shared", "goes_on", "salt") if name in more}
        job = Job(
            list(prompt),
            Request(**{"max_tokens": 7, "seed": 0, **more}),
            lambda delta: None,
            **fields,
        )
        self.scheduler.submit([job])
        return job

    def drain(self, turns=1000):
        for _ in range(turns):
            if not self.scheduler.turn():
                return
        raise AssertionError("the scheduler does not come to an end")

    def tokens(self, job):
        return [token for delta in self.got.get(job, []) for token in delta.tokens]

    def reads(self):
        return [call[1:] for call in self.device.calls if call[0] == "read"]


def test_every_job_gets_its_own_answer():
    desk, rng = Desk(FakeDevice(3), prefill_tokens=8, capacity=2), np.random.default_rng(0)
    jobs = []
    for number in range(60):
        prompt = rng.integers(1, 80, rng.integers(1, 50)).tolist()
        jobs.append(desk.ask(prompt, max_tokens=int(rng.integers(1, 20)), seed=number))
        for _ in range(rng.integers(0, 3)):
            desk.scheduler.turn()
    desk.drain()
    for job in jobs:
        assert desk.tokens(job) == answer(job.prompt, job.request)
        assert [delta.is_last for delta in desk.got[job]].index(True) == len(desk.got[job]) - 1
    assert desk.scheduler.num_running == desk.scheduler.num_waiting == 0


def test_a_row_is_taken_again_within_one_step():
    desk = Desk(FakeDevice(2, pace=3))
    for _ in range(5):
        desk.ask([2, 2], max_tokens=3)
    desk.drain()
    steps = [call for call in desk.device.calls if call[0] == "step"]
    assert steps == [("step", True), ("step", True), ("step", False)]


def test_a_long_prompt_is_read_in_chunks_between_steps():
    desk = Desk(FakeDevice(2, pace=1), prefill_tokens=10)
    desk.ask([2, 2], max_tokens=9)
    desk.scheduler.turn()
    long = desk.ask([2] * 36, max_tokens=2)
    desk.drain()
    kinds = [call[0] for call in desk.device.calls]
    assert kinds[:10] == ["read", "insert", "step"] + ["read", "step"] * 3 + ["read"]
    assert desk.reads() == [(2, 0), (10, 0), (10, 10), (10, 20), (6, 30)]
    assert desk.tokens(long) == answer(long.prompt, long.request)
    # Without running rows it is read at once.
    desk = Desk(prefill_tokens=10)
    desk.ask([2] * 36)
    desk.scheduler.turn()
    assert [call[0] for call in desk.device.calls] == ["read"] * 4 + ["insert", "step"]


def test_the_queue_is_bounded_and_says_when_to_come_again():
    desk = Desk(max_waiting=2)
    jobs = [desk.ask([2, number]) for number in range(4)]  # two rows, two that wait
    with pytest.raises(Busy) as refused:
        desk.ask([9])
    assert refused.value.seconds >= 1
    desk.drain()
    again = desk.ask([9])
    desk.drain()
    assert list(desk.got) == [*jobs, again], "in their order"
    assert [desk.tokens(job) for job in desk.got] == [
        answer(job.prompt, job.request) for job in desk.got
    ]
    # Jobs of a request are taken together or not at all.
    desk = Desk(max_waiting=1)
    several = [
        Job([2, 2], Request(max_tokens=3, row_id=row), lambda delta: None) for row in range(4)
    ]
    with pytest.raises(Busy):
        desk.scheduler.submit(several)
    desk.scheduler.submit(several[:3])
    desk.drain()
    assert len(desk.got) == 3


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_cancelled_job_frees_its_place(turns):
    """Cancels before and during the reading of a prompt, and during the answer."""
    desk = Desk(FakeDevice(1), prefill_tokens=4, max_waiting=1)
    first = desk.ask([2, 2], max_tokens=4)
    desk.scheduler.turn()
    gone = desk.ask([3] * 11, max_tokens=90)
    for _ in range(turns):
        desk.scheduler.turn()
    desk.scheduler.cancel(gone)
    desk.scheduler.turn()
    before = len(desk.got.get(gone, []))
    last = desk.ask([4, 4], max_tokens=4)
    desk.drain()
    assert len(desk.got.get(gone, [])) == before
    assert desk.tokens(last) == answer([4, 4], last.request)
    assert desk.tokens(first) == answer([2, 2], first.request)
    for _ in range(2):  # no place is lost
        desk.ask([5, 5])


def test_one_that_cannot_be_read_hurts_no_other():
    desk = Desk()
    good, bad, later = desk.ask([2, 2], max_tokens=9), desk.ask([666]), desk.ask([4, 4])
    desk.drain()
    assert [delta.error is not None for delta in desk.got[bad]] == [True]
    for job in (good, later):
        assert desk.tokens(job) == answer(job.prompt, job.request)


def test_a_device_that_fails_costs_what_ran_and_no_more():
    desk = Desk()
    desk.ask([2, 2], max_tokens=90)
    desk.scheduler.turn()
    bad = desk.ask([88])
    later = desk.ask([4, 4])
    desk.drain()
    assert desk.got[bad][-1].error is not None
    assert desk.tokens(later) == answer(later.prompt, later.request)
    assert ("reset",) in desk.device.calls


def test_a_row_that_cannot_be_filled_is_not_lost():
    class Failing(FakeDevice):
        failures = 2

        def insert(self, row, arrival):
            if self.failures:
                self.failures -= 1
                raise RuntimeError("no room")
            super().insert(row, arrival)

    desk = Desk(Failing())
    bad, later = [desk.ask([n, n]) for n in (2, 3)], [desk.ask([n, n]) for n in (4, 5, 6)]
    desk.drain()
    assert all(desk.got[job][-1].error is not None for job in bad)
    for job in later:
        assert desk.tokens(job) == answer(job.prompt, job.request)
    assert desk.device.calls.count(("reset",)) == 2


def test_a_device_that_cannot_start_over_leaves_nobody_waiting():
    class Dead(FakeDevice):
        def step(self, waiting):
            raise RuntimeError("the device failed")

        def reset(self):
            raise RuntimeError("it does not come back")

    desk = Desk(Dead())
    jobs = [desk.ask([n, n]) for n in (2, 3, 4)]
    with pytest.raises(RuntimeError, match="does not come back"):
        desk.scheduler.run()
    assert all(desk.got[job][-1].error is not None for job in jobs)
    with pytest.raises(Busy):
        desk.ask([5, 5])


@pytest.mark.parametrize("capacity", [1, 0])
def test_a_beginning_that_two_prompts_share_is_read_twice_and_not_again(capacity):
    desk, shared = Desk(capacity=capacity, prefill_tokens=1000), [7] * 50
    for number in range(4):
        desk.ask([*shared, 10 + number, 3], max_tokens=3)
        desk.drain()
    # The second stops where the two part, if there is room to keep that.
    parted = [(52, 0), (50, 0), (2, 50), (2, 50), (2, 50)]
    assert desk.reads() == (parted if capacity else [(52, 0)] * 4)
    assert desk.scheduler.figures.reused_tokens == 100 * capacity


def test_several_answers_to_one_prompt_read_it_once():
    desk = Desk(FakeDevice(2), capacity=1, prefill_tokens=1000)
    prompt = list(range(1, 61))
    jobs = [
        Job(prompt, Request(max_tokens=4, row_id=row), lambda delta: None, shared=59)
        for row in range(3)
    ]
    desk.scheduler.submit(jobs)
    desk.drain()
    assert desk.reads() == [(59, 0), (1, 59), (1, 59), (1, 59)]
    assert [desk.tokens(job) for job in jobs] == [answer(prompt, job.request) for job in jobs]


def test_texts_in_free_rows_cost_others_nothing():
    desk = Desk(FakeDevice(3, pace=2))
    desk.ask([2, 2], max_tokens=4)
    desk.ask([3, 3], max_tokens=8)
    desk.drain()
    kinds = [call[0] for call in desk.device.calls]
    assert kinds == ["read", "insert"] * 2 + ["step"] * 2 + ["free"] + ["step"] * 2


@pytest.mark.parametrize("others", [0, 3])
def test_a_next_turn_goes_on_where_the_last_one_ended(others):
    """From its row, or from what was kept of it when the row was needed."""
    desk = Desk(FakeDevice(2), capacity=2, prefill_tokens=1000)
    first = desk.ask([7] * 41, max_tokens=20, goes_on=True)
    desk.drain()
    for number in range(others):
        desk.ask([3 + number] * 2, max_tokens=3)
        desk.drain()
    text = [*first.prompt, *desk.tokens(first)]
    assert text[-1] == END
    second = desk.ask([*text, 9, 9, 9], max_tokens=5, goes_on=True)
    desk.drain()
    assert desk.reads()[-1] == (3, len(text))
    assert second.reused == len(text)
    assert desk.tokens(second) == answer(second.prompt, second.request)


def test_the_least_recently_used_goes_first():
    kept = Prefixes(2)
    texts = [[number] * WORTH for number in range(3)]
    kept.keep(texts[0], "a")
    kept.keep(texts[1], "b")
    assert kept.find([*texts[0], 1]) == (WORTH, "a")
    kept.keep(texts[2], "c")
    assert kept.find([*texts[1], 1]) == (0, None)
    assert kept.find([*texts[0], 1]) == (WORTH, "a")
    assert kept.find(texts[0]) == (0, None), "a token has to be read"
    assert len(kept) == 2
    for one, two, shared in (([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 5, 3], 1), ([1], [2], 0)):
        assert common_length(np.array(one), np.array(two)) == shared


def test_a_thread_sleeps_until_there_is_work_and_fails_what_is_left_when_it_ends():
    desk = Desk()
    thread = threading.Thread(target=desk.scheduler.run)
    thread.start()
    done = threading.Event()
    desk.deliver = lambda deltas: None
    job = Job([2, 2], Request(max_tokens=5), lambda delta: None)
    received = []

    def deliver(deltas):
        received.extend(deltas)
        if received[-1][1].is_last:
            done.set()

    desk.scheduler._deliver = deliver
    desk.scheduler.submit([job])
    assert done.wait(20)
    desk.device.go.clear()
    done.clear()
    late = Job([2, 2], Request(max_tokens=50), lambda delta: None)
    desk.device.stepping.clear()
    desk.scheduler.submit([late])
    assert desk.device.stepping.wait(20)
    desk.scheduler.stop()
    desk.device.go.set()
    thread.join(20)
    assert not thread.is_alive()
    assert received[-1][0] is late and received[-1][1].error == STOPPING
    assert desk.scheduler.num_unfinished == 1
    with pytest.raises(Busy):
        desk.scheduler.submit([job])


def test_prefixes_are_shared_within_a_salt_alone():
    """Of prompts that begin alike, and of turns that go on, in a row and among what is kept."""
    desk = Desk(FakeDevice(2), capacity=8)
    begin = list(range(2, 2 + 2 * WORTH))
    for salt in ("mine", "yours", ""):
        jobs = [desk.ask([*begin, number], salt=salt) for number in (90, 91, 92)]
        desk.drain()
        assert [job.reused > 0 for job in jobs] == [False, False, True], salt
    turn = desk.ask([*begin, 95], salt="mine", goes_on=True)
    desk.drain()
    text = [*turn.prompt, *turn.written, 97]
    for salt, known in (("yours", 2 * WORTH), ("", 2 * WORTH), ("mine", len(text) - 1)):
        job = desk.ask(text, salt=salt)
        desk.drain()
        assert job.reused == known
