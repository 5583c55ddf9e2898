"""Malformed requests to a served model: an error object each, no crash, and nothing of them in the log."""

import pytest
from starlette.testclient import TestClient

from dialog.serve.served import ServedDialog
from lm.serve.app import Server
from lm.serve.gate import Policy
from lm.serve.server import LOOPBACK
from tests.support.bad_requests import VALID, bad_requests
from tests.support.tiny_dialog import tiny_dialog


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("count", "seed"), [(300, 1), pytest.param(10_000, 2, marks=pytest.mark.slow)])
def test_no_request_breaks_the_server(count: int, seed: int) -> None:
    log: list[str] = []
    server = Server({"tiny": ServedDialog(tiny_dialog(), "", 0)}, Policy(hosts=LOOPBACK), log=log.append)
    found: dict[int, int] = {}
    with TestClient(server.app, base_url="http://localhost") as client:
        for number, bad in enumerate(bad_requests(count, seed)):
            answer = client.request(bad.method, bad.path, content=bad.body, headers=bad.headers)
            found[answer.status_code] = found.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (number, bad, log[-2:])
            if answer.status_code >= 400 and bad.method != "HEAD":
                error = answer.json()["error"]
                assert error["type"] == "invalid_request_error", (number, bad)
                assert error["message"].isprintable(), (number, bad)
                assert len(error["message"]) < 600, (number, bad)
        for path, body in VALID.items():
            assert client.post(path, json=body).status_code == 200
    assert {200, 400, 404, 405, 403, 415} <= set(found), found
    assert all(line.isprintable() and len(line) < 80 for line in log)
    assert not [line for line in log if "internal" in line]
