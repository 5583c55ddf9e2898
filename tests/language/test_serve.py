"""A served language model: the openai client, and the same texts as `lm generate`."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import openai
import pytest
import torch
from starlette.testclient import TestClient

from lm.heads.config import HeadConfig
from lm.language.config import LmConfig, ModelConfig
from lm.language.generate import GenerateOptions, generate
from lm.language.model import LanguageModel
from lm.language.served import ServedLm, generating
from lm.language.trained import READ_LENGTH, TrainedLm
from lm.serve.app import Server
from lm.serve.failure import ApiError
from lm.serve.gate import Policy
from lm.serve.protocol import MAX_TOKENS, CompletionRequest
from lm.steps import unchecked
from lm.trunks.config import TransformerConfig
from tests.support.bad_requests import VALID, bad_requests
from tests.support.tiny_lm import CELLS, tiny_lm
from tests.support.watch import Watch
from tests.support.words import WORDS

PROMPT = " ".join(WORDS[:3])


def transformer() -> TrainedLm:
    """A model whose attention reaches over fewer tokens than the texts have."""
    recurrent = tiny_lm()
    sizes = {"embedding_size": 6, "hidden_sizes": (8, 8), "weight_dropout": 0.0}
    config = LmConfig(
        model=ModelConfig(trunk="transformer", attention_span=5, **sizes),
        transformer=TransformerConfig(heads=2),
        head=HeadConfig(embedding_size=6),
    )
    model = LanguageModel(config, len(recurrent.codec.vocabulary)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return replace(recurrent, config=config, model=model)


MAKERS = {"softmax": tiny_lm, "mos": partial(tiny_lm, kind="mos", components=2), "transformer": transformer}


@pytest.fixture(scope="module", params=MAKERS)
def trained(request: pytest.FixtureRequest) -> TrainedLm:
    return MAKERS[request.param]()


@pytest.fixture(scope="module")
def http(trained: TrainedLm) -> Iterator[TestClient]:
    server = Server({"tiny": ServedLm(trained, None, 5)}, Policy(), page=False)
    with TestClient(server.app, base_url="http://localhost/v1/") as client:
        yield client


@pytest.fixture(scope="module")
def client(http: TestClient) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url="http://localhost/v1", http_client=http, max_retries=0)


def written(trained: TrainedLm, prompt: str, **options: Any) -> list[str]:
    """The texts of `lm generate`."""
    texts = [""] * options.get("count", 1)
    for piece in generate(trained, prompt, GenerateOptions(**options)):
        texts[piece.sample] += piece.text
    return texts


def test_texts_are_those_of_generate(client: openai.OpenAI, trained: TrainedLm) -> None:
    for prompt in (PROMPT, "", f"{WORDS[0]}\n{WORDS[1]}"):
        answer = client.completions.create(
            model="tiny", prompt=prompt, n=3, seed=7, temperature=0.8, top_p=0.9, max_tokens=12
        )
        texts = written(trained, prompt, count=3, seed=7, temperature=0.8, top_p=0.9, max_tokens=12)
        assert [choice.text for choice in answer.choices] == texts
        assert {choice.finish_reason for choice in answer.choices} == {"length"}
    greedy = client.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=5)
    assert greedy.choices[0].text == written(trained, PROMPT, top_k=1, max_tokens=5)[0]


def test_log_probabilities_streams_and_stops(client: openai.OpenAI, trained: TrainedLm) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "seed": 3, "max_tokens": 20}
    (choice,) = client.completions.create(**asked, logprobs=2).choices
    pieces = list(generate(trained, PROMPT, GenerateOptions(seed=3, max_tokens=20)))
    assert choice.logprobs
    assert choice.logprobs.tokens == [piece.token for piece in pieces]
    assert choice.logprobs.token_logprobs == [pytest.approx(piece.log_prob) for piece in pieces]
    for top, own in zip(
        choice.logprobs.top_logprobs or (), choice.logprobs.token_logprobs or (), strict=True
    ):
        assert len(top) == 2
        assert max(top.values()) >= (own or 0) - 1e-9
        assert math.fsum(map(math.exp, top.values())) <= 1 + 1e-9
    chunks = [*client.completions.create(**asked, stream=True, logprobs=2)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    offsets = [at for chunk in chunks if (own := chunk.choices[0].logprobs) for at in own.text_offset or ()]
    assert offsets == choice.logprobs.text_offset
    stop = choice.text.split()[4]
    (cut,) = client.completions.create(**asked, stop=stop).choices
    assert cut.text == choice.text[: choice.text.index(stop)]
    assert cut.finish_reason == "stop"


def test_texts_have_a_limit() -> None:
    asked = CompletionRequest.model_validate(
        {"model": "tiny", "prompt": ["a"], "max_tokens": 10 * MAX_TOKENS}
    )
    assert generating(asked).max_tokens == MAX_TOKENS


@pytest.mark.parametrize("make", [tiny_lm, partial(tiny_lm, cell=CELLS[2]), transformer])
def test_prompts_that_wait_are_continued_together_as_if_alone(make: Callable[[], TrainedLm]) -> None:
    run = ServedLm(make(), None, 0)
    queries = [
        query
        for seed, prompt in enumerate((PROMPT, "", WORDS[5]))
        for query in run.completion_jobs(
            CompletionRequest.model_validate(
                {"model": "tiny", "prompt": [prompt], "n": 2, "seed": seed, "max_tokens": 9}
            )
        )
    ]
    assert len({query.group for query in queries}) == 1
    together = [choice.text for answer in queries[0].run(queries, unchecked) for choice in answer.choices]
    alone = [choice.text for query in queries for choice in query.run([query], unchecked)[0].choices]
    assert together == alone
    assert len(set(alone)) > 3


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"temperature": 0, "decode": {"top_k": 5}}, "top_k"),
        ({"decode": {"temperature_on": "components"}}, "temperature_on"),
        ({"temperature": 0, "decode": {"temperature_on": "mixture"}}, "temperature_on"),
    ],
)
def test_settings_without_effect_are_refused(more: dict[str, Any], name: str) -> None:
    asked = CompletionRequest.model_validate({"model": "tiny", "prompt": ["a"], **more})
    with pytest.raises(ApiError, match=f"decode.{name}: has no effect"):
        generating(asked)


def test_a_check_comes_before_every_piece_of_a_prompt_and_every_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained, watch = tiny_lm(), Watch()
    monkeypatch.setattr(trained.model, "forward", watch.watched(trained.model.forward))
    asked = {"model": "tiny", "prompt": [" ".join([WORDS[0]] * (2 * READ_LENGTH))] * 2, "max_tokens": 4}
    jobs = ServedLm(trained, None, 0).completion_jobs(CompletionRequest.model_validate(asked))
    jobs[0].run(jobs, watch.check)
    assert watch.calls == 2 * 3 + 3, "the last token is not read"


def test_there_is_no_chat_and_no_page(http: TestClient) -> None:
    asked = VALID["/v1/chat/completions"]
    answer = http.post("http://localhost/v1/chat/completions", json=asked)
    assert answer.status_code == 404
    assert "use /v1/completions" in answer.json()["error"]["message"]
    assert http.get("http://localhost/").status_code == 404


def test_no_request_breaks_the_server(http: TestClient) -> None:
    for bad in bad_requests(150, 3):
        answer = http.request(
            bad.method, f"http://localhost{bad.path}", content=bad.body, headers=bad.headers
        )
        assert answer.status_code < 500, bad
