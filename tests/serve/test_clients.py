"""Several clients of one server: names, rates, room, and nothing of each other's prompts."""

import json
import threading

import fakes
import pytest
from desk import service

from jspec._validate.errors import InputError
from jspec.serve import launch
from jspec.serve.clients import NOBODY, Client, Clients, read
from jspec.serve.errors import APIError

ANN, BOB = Client("ann", "a", answers=2), Client("bob", "b", requests_per_minute=3)


def complete(client, key, **body):
    headers = {"Authorization": f"Bearer {key}"}
    sent = {"model": "bytes", "prompt": "Hi", "max_tokens": 3} | body
    return client.post("/v1/completions", json=sent, headers=headers)


def test_a_file_of_clients(tmp_path):
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"ann": {"key": "a", "answers": 2}, "bob": {"key": "b"}}))
    assert read(file) == (ANN, Client("bob", "b"))


def test_an_invalid_file_is_refused(tmp_path):
    for held, said in (
        ([], "it has to be a JSON object"),
        ({}, "has no client"),
        ({"ann": 3}, "has to be an object"),
        ({"ann": {}}, "no name or no key"),
        ({"": {"key": "a"}}, "no name or no key"),
        ({"ann": {"key": 3}}, "has to be a text"),
        ({"ann": {"key": "a", "rate": 3}}, "'rate'; it has answers, key, requests_per_minute"),
        ({"ann": {"key": "a", "answers": 0}}, "answers = 0; it has to be an integer of at least"),
        ({"ann": {"key": "a"}, "bob": {"key": "a"}}, "two clients .* have one key"),
    ):
        (tmp_path / "keys.json").write_text(json.dumps(held))
        with pytest.raises(InputError, match=said):
            read(tmp_path / "keys.json")


def test_keys_that_no_header_brings_are_refused_at_the_start(tmp_path):
    (file := tmp_path / "keys.json").write_text(json.dumps({"ann": {"key": "a"}}))
    for key, said in (("é", "printable ASCII"), ("\udcff", "printable ASCII"), (" a", "spaces")):
        with pytest.raises(InputError, match=f"--api-key is .*{said}"):
            launch.ServeSettings("tiny", api_key=key)
    with pytest.raises(InputError, match=r"is a key in .*; give each its own"):
        launch.ServeSettings("tiny", api_key="a", api_keys=file)
    both = launch.ServeSettings("tiny", api_key="b", api_keys=file).clients()
    assert both == (Client("", "b"), Client("ann", "a"))


def test_a_rate_fills_up_again():
    now = [0.0]
    clients = Clients([ANN, BOB], lambda: now[0])
    assert clients.of("a") is ANN and clients.of("") is None and Clients([]).of("x") is NOBODY
    for _ in range(3):
        clients.asks(BOB)
        clients.asks(ANN)
    with pytest.raises(APIError, match="bob may make 3 requests in a minute") as refused:
        clients.asks(BOB)
    assert refused.value.status == 429 and refused.value.headers == {"Retry-After": "20"}
    now[0] = 20.0
    clients.asks(BOB)
    with pytest.raises(APIError):
        clients.asks(BOB)


def test_each_client_has_its_own_room_and_name():
    device = fakes.FakeDevice(1)
    with service(device, clients=(ANN, BOB), max_waiting=9) as client:
        assert complete(client, "c").status_code == 401
        got = complete(client, "a", n=3).json()["error"]
        assert got["message"].startswith("the request asks for 3 answers, and ann has room for 2")
        device.go.clear()
        asking = threading.Thread(target=complete, args=(client, "a"), kwargs={"n": 2})
        asking.start()
        assert device.stepping.wait(20)
        got = complete(client, "a")
        assert got.status_code == 429 and "ann has room for 2 answers at a time" in got.text
        device.go.set()
        asking.join(20)
        assert complete(client, "a").status_code == 200, "its room is free again"
        assert [complete(client, "b").status_code for _ in range(4)] == [200] * 3 + [429]
    named = [(line["status"], line.get("key")) for line in client.lines]
    assert named[0] == (401, None) and named[-1] == (429, "bob") and (200, "ann") in named


def test_clients_share_nothing_that_was_read():
    with service(clients=(Client("ann", "a"), Client("bob", "b")), capacity=8) as client:

        def cached(key):
            usage = complete(client, key, prompt="a" * 80).json()["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        assert [cached("a") > 0 for _ in range(3)] == [False, False, True]
        assert [cached("b") > 0 for _ in range(3)] == [False, False, True]
