"""Random requests, most of them wrong, have answers of the API and leave no row in use."""

import random

import pytest
from desk import service

from benchmarks.serving.random_requests import random_request, right


@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_every_request_has_an_answer(count, caplog):
    with service() as client:
        for number in range(count):
            asked = random_request(random.Random(f"{count} {number}"), "bytes")
            head = {"content-type": "application/json"}
            got = client.request(asked.method, asked.path, content=asked.content, headers=head)
            assert right(got.status_code, got.content), (number, asked, got.text)
        assert not client.service.scheduler.num_running
    assert "Traceback" not in caplog.text


def test_invalid_answers():
    for status, content in (
        (500, b"{}"),
        (400, b"no"),
        (404, b'{"error": {"message": "a"}}'),
        (200, b"a" * 10**7),
    ):
        assert not right(status, content)
        assert right(200, b"ok")
