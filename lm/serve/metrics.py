"""Counters of the server, in the text format of Prometheus."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # upper bounds of the histogram of durations
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Metrics:
    """Counts since the start. Labels are our own names, never a client's text."""

    waiting: Callable[[], int]  # the number of waiting jobs now
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)  # by endpoint and status
    within: Counter[tuple[str, float]] = field(default_factory=Counter)  # by endpoint and bound
    seconds: dict[str, float] = field(default_factory=dict)  # by endpoint
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)  # by model, and read or written
    batches: int = 0
    jobs: int = 0
    left: int = 0

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests[endpoint, status] += 1
        self.seconds[endpoint] = self.seconds.get(endpoint, 0.0) + seconds
        for bound in SECONDS:
            self.within[endpoint, bound] += seconds <= bound

    def ran(self, jobs: int) -> None:
        """Count a batch."""
        self.batches += 1
        self.jobs += jobs

    def text(self) -> str:
        """All metrics, one a line."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests by endpoint and HTTP status.")
        for (endpoint, status), count in sorted(self.requests.items()):
            yield f'highrank_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
        yield from _head("request_seconds", "histogram", "Time from a request to the end of its answer.")
        for endpoint, total in sorted(self.seconds.items()):
            of = f'endpoint="{endpoint}"'
            count = sum(n for (name, _), n in self.requests.items() if name == endpoint)
            for bound in SECONDS:
                cumulative = self.within[endpoint, bound]
                yield f'highrank_request_seconds_bucket{{{of},le="{bound:g}"}} {cumulative}'
            yield f'highrank_request_seconds_bucket{{{of},le="+Inf"}} {count}'
            yield f"highrank_request_seconds_sum{{{of}}} {total:.6f}"
            yield f"highrank_request_seconds_count{{{of}}} {count}"
        yield from _head("tokens_total", "counter", "Tokens by model, read and written.")
        for (model, kind), count in sorted(self.tokens.items()):
            yield f'highrank_tokens_total{{model="{_escaped(model)}",kind="{kind}"}} {count}'
        for name, value, about in (
            ("batches_total", self.batches, "Batches decoded."),
            ("batched_jobs_total", self.jobs, "Jobs in these batches."),
            ("clients_left_total", self.left, "Requests whose client left before the answer."),
        ):
            yield from _head(name, "counter", about)
            yield f"highrank_{name} {value}"
        yield from _head("waiting_jobs", "gauge", "Jobs that wait.")
        yield f"highrank_waiting_jobs {self.waiting()}"


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP highrank_{name} {about}"
    yield f"# TYPE highrank_{name} {kind}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
