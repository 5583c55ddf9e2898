"""A run that answers at once, or as slowly as it is told; also a program that serves it at a Unix socket."""

import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.serve import app
from lm.serve.answers import Answer, Choice, Token
from lm.serve.app import Server
from lm.serve.batching import Job
from lm.serve.gate import Policy
from lm.serve.protocol import ChatRequest, CompletionRequest, InspectRequest
from lm.serve.server import answer_at
from lm.steps import Check


class ToyServed:
    """Its reply is what was said last, word by word. ``sleep 0.5`` takes half a second, ``fail`` fails."""

    created, fingerprint = 1_700_000_000, "f00d"
    about: Mapping[str, Any] = {"head": "toy"}

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def chat_job(self, request: ChatRequest) -> Job:
        return Job("chat", self._answers, request.messages[-1].text)

    def inspect_job(self, request: InspectRequest) -> Job:
        return Job(object(), lambda jobs, check: [{"steps": []}], None)

    def completion_jobs(self, request: CompletionRequest) -> Sequence[Job]:
        return [Job("completion", self._answers, prompt) for prompt in request.prompt]

    def _answers(self, jobs: Sequence[Job], check: Check) -> list[Answer]:
        self.batches.append([job.body for job in jobs])
        for job in jobs:
            if job.body.startswith("sleep "):
                time.sleep(float(job.body.split()[1]))
            if job.body == "fail":
                raise RuntimeError("a bug\x1b[2J\nsecond line")
        return [
            Answer((Choice(tuple(Token(word, f" {word}") for word in job.body.split()), True),), 1)
            for job in jobs
        ]


def unix_socket(path: Path) -> socket.socket:
    """A socket that listens at a path as soon as there is one."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    path.with_name(f"{path.name}.new").rename(path)
    return listener


if __name__ == "__main__":
    app.LAST_SECONDS = 0.2
    server = Server({"toy": ToyServed()}, Policy(), log=lambda line: print(line, flush=True))
    limits = json.loads(sys.argv[2])
    answer_at(unix_socket(Path(sys.argv[1])), server, lambda: print("ready", flush=True), **limits)
    print("ended", flush=True)
