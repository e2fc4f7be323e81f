"""The service over the fake device, asked by the real `openai` client without a connection."""

import pytest
from desk import service

openai = pytest.importorskip("openai")

KEY = "a key"
ASK = dict(model="bytes", prompt="Once", max_tokens=9, seed=1)
CHAT = dict(model="bytes", messages=[{"role": "user", "content": "Hi"}], max_tokens=9, seed=7)


@pytest.fixture(scope="module")
def client():
    with service(api_key=KEY) as http:
        yield openai.OpenAI(
            base_url=f"{http.base_url}/v1", api_key=KEY, max_retries=0, http_client=http
        )


def test_completions_are_read_whole_and_streamed(client):
    whole = client.completions.create(**ASK, logprobs=2)
    (choice,) = whole.choices
    assert "".join(choice.logprobs.tokens) == choice.text
    assert len(choice.logprobs.tokens) == whole.usage.completion_tokens
    parts = client.completions.create(**ASK, stream=True)
    assert "".join(part.choices[0].text for part in parts) == choice.text
    assert client.models.list().data[0].id == "bytes"


def test_chats_are_read_whole_and_streamed(client):
    chat = client.chat.completions
    answers = chat.create(**CHAT, n=2, logprobs=True, top_logprobs=1)
    assert answers.choices[0].message.content != answers.choices[1].message.content
    assert answers.choices[0].logprobs.content[0].top_logprobs
    deltas = list(chat.create(**CHAT, n=2, stream=True, stream_options={"include_usage": True}))
    assert deltas[-1].usage.completion_tokens == answers.usage.completion_tokens
    for index, choice in enumerate(answers.choices):
        said = [c.delta.content or "" for p in deltas for c in p.choices if c.index == index]
        assert "".join(said) == choice.message.content


def test_errors_are_those_of_the_client(client):
    with pytest.raises(
        openai.BadRequestError, match="best_of is not a field of this path"
    ) as refused:
        client.completions.create(**ASK, best_of=2)
    assert refused.value.param == "best_of"
    with pytest.raises(openai.NotFoundError, match="this server has"):
        client.completions.create(**ASK | {"model": "other"})
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").completions.create(**ASK)
    with pytest.raises(openai.BadRequestError, match="256 states"):
        client.completions.create(**ASK, extra_body={"structured_outputs": {"choice": ["x" * 300]}})
    with pytest.raises(openai.APIStatusError) as refused:
        client.completions.create(**ASK | {"prompt": "x" * 10**7})
    assert refused.value.status_code == 413
