"""The endpoints without a model: keys, hosts, limits, errors, headers, the log and the metrics."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from lm.serve.app import Server
from lm.serve.gate import Policy
from lm.serve.protocol import MAX_BODY, NEUTRAL
from lm.serve.server import LOOPBACK
from tests.support.toy_served import ToyServed

KEY = "0123456789abcdef"
CHAT = "/v1/chat/completions"


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def client(log: list[str]) -> Iterator[TestClient]:
    server = Server({"toy": ToyServed(), 'a"b\\c': ToyServed()}, Policy(hosts=LOOPBACK), log=log.append)
    with TestClient(server.app, base_url="http://localhost:8000") as client:
        yield client


@pytest.fixture
def locked() -> Iterator[TestClient]:
    server = Server({"toy": ToyServed()}, Policy(keys=("f" * 20, KEY)))
    with TestClient(server.app, base_url="http://example.org") as client:
        yield client


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "toy", "messages": [{"role": "user", "content": text}], **more}


def message(content: Any, role: str = "user") -> dict[str, Any]:
    return {"model": "toy", "messages": [{"role": role, "content": content}]}


def fault(client: TestClient, body: Any, path: str = CHAT) -> tuple[int, dict[str, Any]]:
    answer = client.post(path, json=body)
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status_code, error


def test_a_chat_and_a_completion_are_answered(client: TestClient) -> None:
    answer = client.post(CHAT, json=ask("so it goes")).json()
    assert answer["choices"][0]["message"]["content"] == " so it goes"
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    answer = client.post("/v1/completions", json={"model": "toy", "prompt": ["a", "b c"], "stop": "c"}).json()
    assert [choice["text"] for choice in answer["choices"]] == [" a", " b c"], "the toy ignores stop"
    assert client.get("/v1/models/toy").json()["id"] == "toy"
    assert client.get("/healthz").json() == {"status": "ok", "waiting": 0}


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        (ask("a", frobnicate=1), 400, "frobnicate", "unknown_parameter"),
        (ask("a", tools=[{"type": "function"}]), 400, "tools", "unsupported_parameter"),
        (ask("a", presence_penalty=0.5), 400, "presence_penalty", "unsupported_parameter"),
        (ask("a", logit_bias={"3": 1}), 400, "logit_bias", "unsupported_parameter"),
        (ask("a", response_format={"type": "json_object"}), 400, "response_format", "unsupported_parameter"),
        (ask("a", n=0), 400, "n", "invalid_value"),
        (ask("a", n=True), 400, "n", "invalid_value"),
        (ask("a", temperature=-1), 400, "temperature", "invalid_value"),
        (ask("a", seed=2**70), 400, "seed", "invalid_value"),
        (ask("a", stop=["x"] * 9), 400, "stop", "invalid_value"),
        (ask("a", max_tokens=3, max_completion_tokens=4), 400, "max_tokens", "invalid_value"),
        (ask("a", top_logprobs=3), 400, "top_logprobs", "invalid_value"),
        (ask("a", stream_options={"include_usage": True}), 400, "stream_options", "invalid_value"),
        ({"model": "toy"}, 400, "messages", "missing_required_parameter"),
        ({"model": "toy", "messages": []}, 400, "messages", "invalid_value"),
        (message("a", role="system"), 400, "messages", "invalid_value"),
        (message("a", role="tool"), 400, "messages[0].role", "invalid_value"),
        (message([{"type": "image_url"}]), 400, "messages[0].content[0].type", "invalid_value"),
        (message(3), 400, "messages[0].content", "invalid_value"),
        (ask("a", model="../../etc/passwd"), 404, "model", "model_not_found"),
    ],
)  # fmt: skip
def test_what_is_not_supported_gets_an_error_object(
    client: TestClient, body: Any, status: int, param: str, code: str
) -> None:
    found, error = fault(client, body)
    assert (found, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (ask("a", temprature=1), "temprature: unknown parameter; did you mean temperature?"),
        (
            ask("a", frobnicate=1),
            "frobnicate: unknown parameter; choose from model, n, seed, temperature, top_p, max_tokens, stop,"
            " stream, stream_options, user, decode, messages, max_completion_tokens, logprobs, top_logprobs",
        ),
        (ask("a", stream=True, stream_options={"usage": 1}), "stream_options.usage: unknown parameter"),
        ({"model": "toy", "messages": []}, "messages: needs at least one message"),
    ],
)
def test_mistakes_are_named(client: TestClient, body: Any, says: str) -> None:
    assert fault(client, body)[1]["message"] == says


def test_another_method_is_refused_with_the_right_one(client: TestClient) -> None:
    for answer, right in ((client.get(CHAT), "POST"), (client.post("/healthz", json={}), "GET")):
        assert answer.status_code == 405
        assert answer.json()["error"]["message"] == f"method not allowed; use {right}"


def test_the_documentation_names_what_is_not_supported() -> None:
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert [name for name in NEUTRAL if f"`{name}`" not in text] == []


def test_parameters_without_an_effect_are_taken(client: TestClient) -> None:
    harmless = {"frequency_penalty": 0.0, "tools": [], "response_format": {"type": "text"}, "user": "me"}
    message = {"role": "user", "content": [{"type": "text", "text": "a"}], "tool_calls": None}
    answer = client.post(CHAT, json=ask("a", **harmless, top_p=None, seed=None) | {"messages": [message]})
    assert answer.status_code == 200
    system = {"role": "system", "content": "be brief"}
    said = {"role": "assistant", "content": "b", "tool_calls": [], "annotations": [], "refusal": None}
    many = ask("a", max_tokens=100_000) | {"messages": [system, message, said, message]}
    assert client.post(CHAT, json=many).status_code == 200
    nothing = {"stream": True, "stream_options": {"include_usage": None}}
    answer = client.post(CHAT, json=ask("a", **nothing))
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff\xfe", b'{"n": NaN}', b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}"]
)
def test_a_body_that_is_no_json_object_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_bodies_have_a_limit_and_a_type(client: TestClient) -> None:
    large = client.post(CHAT, content=b" " * (MAX_BODY + 1), headers={"content-type": "application/json"})
    form = client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert (large.status_code, form.status_code) == (413, 415)
    assert client.get("/v2").status_code == 404
    assert client.get(CHAT).status_code == 405


def test_another_name_of_the_loopback_address_is_refused(client: TestClient) -> None:
    for host in ("evil.example:8000", "localhost.evil", ""):
        assert client.get("/healthz", headers={"host": host}).status_code == 403, host
    for host in ("127.0.0.1", "[::1]:8000", "LOCALHOST"):
        assert client.get("/healthz", headers={"host": host}).status_code == 200, host


def test_each_key_opens_everything_and_only_the_page_and_health_need_none(locked: TestClient) -> None:
    for path in ("/", "/page.js", "/style.css", "/healthz"):
        assert locked.get(path).status_code == 200
    for given in ("", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", "Bearer ünïcode"):
        answer = locked.get("/v1/models", headers={"authorization": given.encode()})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    for key in ("f" * 20, KEY):
        for path in ("/v1/models", "/metrics"):
            assert locked.get(path, headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert locked.post(CHAT, json=ask("a")).status_code == 401


def test_a_bug_becomes_an_error_object_and_a_line_of_the_log(client: TestClient, log: list[str]) -> None:
    status, error = fault(client, ask("fail"))
    assert (status, error["type"]) == (500, "server_error")
    assert "second line" not in error["message"]
    (line,) = [line for line in log if line.startswith("internal error: RuntimeError")]
    assert line.isprintable()
    assert client.post(CHAT, json=ask("still here")).status_code == 200


def test_nothing_of_the_client_is_in_the_log(client: TestClient, log: list[str]) -> None:
    client.get("/%1b[2Jsecret%0d%0asecret?q=%1b")
    client.request("SECRET", "/v1/models")
    client.post(CHAT, json=ask("secret", **{"secret\x1b": 1}))
    client.get("/v1/models/secret", headers={"user-agent": "secret\x1b"})
    assert len(log) == 4
    assert not [line for line in log if "secret" in line.lower() or not line.isprintable()]


def test_every_answer_has_the_headers_that_browsers_heed(client: TestClient) -> None:
    for path in ("/", "/style.css", "/nothing", "/v1/models"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_needs_nothing_from_elsewhere_and_makes_no_markup_of_text(client: TestClient) -> None:
    page = client.get("/").text
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert links
    assert all(client.get(link).status_code == 200 for link in links if not link.startswith("data:"))
    assert "style=" not in page
    assert "<script>" not in page
    for script in [link for link in links if link.endswith(".js")]:
        text = client.get(script).text
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?:", text)


def test_metrics_count_requests_tokens_and_batches(client: TestClient) -> None:
    client.post(CHAT, json=ask("so it goes"))
    client.post(CHAT, json=ask("so it goes") | {"model": 'a"b\\c'})
    client.get("/nothing%0a")
    text = client.get("/metrics").text
    assert 'highrank_requests_total{endpoint="/v1/chat/completions",status="200"} 2\n' in text
    assert 'highrank_requests_total{endpoint="other",status="404"} 1\n' in text
    assert 'highrank_tokens_total{model="a\\"b\\\\c",kind="written"} 3\n' in text
    assert "highrank_batches_total 2\n" in text
    assert re.fullmatch(r"(#.*\n|highrank_\w+(\{.*\})? [\d.e-]+\n)+", text)


def test_a_stream_is_events_that_end_with_done(client: TestClient) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}}
    answer = client.post(CHAT, json=ask("so it goes", **more))
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done = answer.text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(c["delta"].get("content", "") for one in chunks for c in one["choices"]) == " so it goes"
    assert [c["finish_reason"] for one in chunks for c in one["choices"]] == [None] * 4 + ["stop"]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 4)
    assert len({chunk["id"] for chunk in chunks}) == 1
