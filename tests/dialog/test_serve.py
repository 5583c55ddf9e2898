"""A served dialog model: the openai client, the same replies as elsewhere, and what the page asks for."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import openai
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from dialog.batches import list_examples
from dialog.chat.conversation import Conversation, spoken
from dialog.chat.repl import Repl
from dialog.serve.served import ServedDialog, pieces
from dialog.serve.settings import decoding
from dialog.trained import TrainedModel
from dialog.utterance import Dialog, Utterance
from lm.errors import ConfigError
from lm.serve.app import Server
from lm.serve.failure import ApiError
from lm.serve.gate import Policy
from lm.serve.protocol import ChatRequest, InspectRequest, parsed
from lm.steps import unchecked
from lm.text.vocabulary import Codec, build_codec
from tests.support.chat_requests import conversation, parsed_chat
from tests.support.tiny_dialog import tiny_dialog
from tests.support.watch import Watch

SAID = ["well i saw that film", "Oh, was it LONG?", "yeah", "right", "i think so"]


@pytest.fixture(scope="module")
def http(tiny: TrainedModel) -> Iterator[TestClient]:
    server = Server({"tiny": ServedDialog(tiny, "0123456789abcdef", 5)}, Policy(keys=("k" * 16,)))
    with TestClient(server.app, base_url="http://localhost/v1/") as client:
        yield client


@pytest.fixture(scope="module")
def client(http: TestClient) -> openai.OpenAI:
    return openai.OpenAI(api_key="k" * 16, base_url="http://localhost/v1", http_client=http, max_retries=0)


def test_the_client_lists_models_and_chats(client: openai.OpenAI, tiny: TrainedModel) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    answer = client.chat.completions.create(model="tiny", messages=conversation("well"), n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == Conversation(tiny).say("well").reply.text
    assert answer.system_fingerprint == "0123456789ab"
    assert answer.usage
    assert answer.usage.prompt_tokens == len(["<s>", "<d>", "</s>", "<s>", "well", "</s>"])


@pytest.mark.parametrize(
    "more",
    [{}, {"temperature": 0.8, "seed": 7}, {"top_p": 0.9, "seed": 7}, {"temperature": 0}, {"max_tokens": 3}],
)
def test_replies_are_those_of_the_chat_and_of_evaluation(
    client: openai.OpenAI, tiny: TrainedModel, more: dict[str, Any]
) -> None:
    """The same text, seed and settings give the same reply everywhere."""
    decode = decoding(parsed_chat(**more), tiny.config.decode)
    chat = Conversation(tiny, decode)
    spoken_texts: list[str] = []
    for text in SAID:
        messages = conversation(*spoken_texts, text)
        answer = client.chat.completions.create(model="tiny", messages=messages, **more)
        reply = chat.say(text).reply.text
        assert answer.choices[0].message.content == reply
        spoken_texts += [text, reply]
    dialog = Dialog("1", "", tuple(Utterance("AB"[i % 2], text) for i, text in enumerate(spoken_texts)))
    examples = [one for one in list_examples([dialog], last=True) if one.responder == "B"]
    evaluated = tiny.respond(examples, decode)
    assert [spoken(tiny.codec, best[0].tokens) for best in evaluated] == spoken_texts[1::2]
    lines = [line for text in SAID for line in Repl(Conversation(tiny, decode)).feed(text)]
    alone = [
        client.chat.completions.create(model="tiny", messages=conversation(text), **more).choices[0].message
        for text in SAID
    ]
    assert [message.content or "(says nothing)" for message in alone] == lines


def test_streams_say_the_same_as_whole_answers(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": conversation(*SAID), "n": 2}
    whole = client.chat.completions.create(**asked)
    texts = ["", ""]
    ends: list[str | None] = [None, None]
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]


def test_log_probabilities_are_those_of_the_model(client: openai.OpenAI, tiny: TrainedModel) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=conversation("well"), logprobs=True, top_logprobs=5
    )
    (choice,) = answer.choices
    assert choice.logprobs
    content = choice.logprobs.content or []
    assert b"".join(bytes(one.bytes or ()) for one in content).decode() == choice.message.content
    best = Conversation(tiny).say("well").hypotheses[0]
    steps = tiny.token_probabilities(Conversation(tiny).next_example(Utterance("A", "well")), best.tokens, 5)
    end = math.log(steps[-1].prob) if best.finished else 0.0
    assert math.fsum(one.logprob for one in content) + end == pytest.approx(best.log_prob, rel=1e-5)
    for one, step in zip(content, steps, strict=False):
        assert [(top.token, pytest.approx(math.exp(top.logprob))) for top in one.top_logprobs] == [
            (token, prob) for token, prob, _ in step.top
        ]
        assert {top.bytes for top in one.top_logprobs} == {None}, "the text of a token depends on its place"


def test_a_completion_continues_the_lines_of_its_prompt(client: openai.OpenAI, tiny: TrainedModel) -> None:
    prompts = ["well", "well\nyeah\nright"]
    answer = client.completions.create(model="tiny", prompt=prompts, logprobs=2, max_tokens=5, seed=3)
    chats = [
        client.chat.completions.create(
            model="tiny", messages=conversation(*prompt.split("\n")), max_tokens=5, seed=3
        )
        for prompt in prompts
    ]
    assert [one.text for one in answer.choices] == [chat.choices[0].message.content for chat in chats]
    for one in answer.choices:
        assert one.logprobs
        offsets = one.logprobs.text_offset or []
        assert offsets == sorted(offsets)
        assert len(one.logprobs.tokens or ()) == len(one.logprobs.token_logprobs or ()) == len(offsets)


def test_stop_cuts_a_reply_with_its_tokens(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": conversation("well"), "logprobs": True}
    whole = client.chat.completions.create(**asked).choices[0].message.content or ""
    middle = whole[len(whole) // 2 :][:3]
    (cut,) = client.chat.completions.create(**asked, stop=["never said", middle]).choices
    assert cut.message.content == whole[: whole.index(middle)]
    assert cut.finish_reason == "stop"
    assert cut.logprobs
    assert b"".join(bytes(t.bytes or ()) for t in cut.logprobs.content or ()).decode() == cut.message.content


def test_the_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": conversation("well")}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked, tools=[{"type": "function", "function": {"name": "f"}}])
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "tools")
    with pytest.raises(openai.BadRequestError, match=r"decode\.beem: unknown parameter; did you mean beam"):
        client.chat.completions.create(**asked, extra_body={"decode": {"beem": 3}})
    with pytest.raises(openai.BadRequestError, match="must be at most"):
        client.chat.completions.create(**asked, extra_body={"decode": {"beam": 10_000}})
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**asked | {"model": "gpt"})
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_an_unknown_word_is_the_fault_of_its_request(http: TestClient) -> None:
    body = {"model": "tiny", "messages": conversation("well"), "decode": {"require": ["zyzzyva"]}}
    key = {"authorization": f"Bearer {'k' * 16}"}
    answer = http.post("http://localhost/v1/chat/completions", json=body, headers=key)
    assert answer.status_code == 400
    assert "not in the run's vocabulary" in answer.json()["error"]["message"]


def test_no_folder_of_the_server_is_told(tiny: TrainedModel) -> None:
    decode = tiny.config.decode.model_copy(update={"mmi_run": "/srv/anna/backward"})
    run = ServedDialog(replace(tiny, config=tiny.config.model_copy(update={"decode": decode})), "", 0)
    assert "anna" not in str(run.about)
    assert run.about["decode"]["beam"] == decode.beam


def test_an_ensemble_is_served_beside_its_runs(tiny: TrainedModel) -> None:
    other = tiny_dialog()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(0.5)
    runs = {"a": ServedDialog(tiny, "1", 1), "b": ServedDialog(other, "2", 2)}
    joined = ServedDialog.ensemble_of(runs)
    job = joined.chat_job(parsed_chat())
    (answer,) = job.run([job], unchecked)
    model = TrainedModel.ensemble_of([tiny, other], ["a", "b"])
    assert answer.choices[0].text == Conversation(model).say("a").reply.text
    assert joined.about["components"] == 6
    assert joined.fingerprint not in ("1", "2", "")
    foreign = replace(tiny, codec=build_codec("wordpunct", ["x y"], vocab_size=9, extra_counts={"<d>": 1}))
    with pytest.raises(ConfigError, match="another vocabulary"):
        ServedDialog.ensemble_of(runs | {"c": ServedDialog(foreign, "3", 3)})


def test_requests_with_different_seeds_are_decoded_together(tiny: TrainedModel) -> None:
    run = ServedDialog(tiny, "", 0)
    requests = [parsed_chat(temperature=1.2, seed=seed) for seed in range(6)]
    jobs = [run.chat_job(request) for request in requests]
    assert len({job.group for job in jobs}) == 1
    together = [answer.choices[0].text for answer in jobs[0].run(jobs, unchecked)]
    assert together == [job.run([job], unchecked)[0].choices[0].text for job in jobs]
    assert len(set(together)) > 1


def test_inspection_agrees_with_the_search(tiny: TrainedModel) -> None:
    run = ServedDialog(tiny, "", 0)
    body = {"model": "tiny", "messages": conversation(*SAID), "choice": 1, "top": 4}
    job = run.inspect_job(InspectRequest.model_validate(body))
    (found,) = job.run([job], unchecked)
    chat = run.chat_job(parsed_chat(messages=body["messages"], n=3))
    (answer,) = chat.run([chat], unchecked)
    assert [one["text"] for one in found["replies"]] == [choice.text for choice in answer.choices]
    reply = found["replies"][1]
    assert "".join(step["text"] for step in found["steps"]) == reply["text"]
    total = math.fsum(math.log(step["probability"]) for step in found["steps"])
    assert total == pytest.approx(reply["log_prob"], rel=1e-5)
    for step in found["steps"]:
        assert len(step["top"]) == 4
        assert math.fsum(step["prior"]) == pytest.approx(1)
        for word in step["top"]:
            assert math.fsum(word["shares"]) == pytest.approx(word["probability"])
        fates = [one["fate"] for one in step["beam"]]
        assert fates.count("kept") <= tiny.config.decode.beam
        scores = [one["log_prob"] for one in step["beam"]]
        assert scores == sorted(scores, reverse=True)
    job = run.inspect_job(InspectRequest.model_validate(body | {"choice": 7}))
    with pytest.raises(ApiError, match="the search found 3 replies"):
        job.run([job], unchecked)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[ServedDialog, Watch]:
    """A run, and the watch over the steps of its decoder."""
    model, watch = tiny_dialog(), Watch()
    monkeypatch.setattr(model.model.decoder, "step", watch.watched(model.model.decoder.step))
    return ServedDialog(model, "", 0), watch


def test_a_check_comes_before_every_step_of_log_probabilities(watched: tuple[ServedDialog, Watch]) -> None:
    run, watch = watched
    job = run.chat_job(parsed_chat(n=3, logprobs=True, top_logprobs=2))
    (answer,) = job.run([job], watch.check)
    assert watch.calls > sum(len(choice.tokens) for choice in answer.choices)


def test_a_check_comes_before_every_step_of_an_inspection(watched: tuple[ServedDialog, Watch]) -> None:
    run, watch = watched
    asked = InspectRequest.model_validate({"model": "tiny", "messages": conversation("a")})
    job = run.inspect_job(asked)
    (found,) = job.run([job], watch.check)
    assert watch.calls >= 3 * len(found["steps"]), "the search, its trace, and the probabilities"


CODEC = tiny_dialog().codec


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(4, 24), max_size=12))
def test_the_pieces_of_a_reply_make_its_text(tokens: list[int]) -> None:
    codec = CODEC
    ids = [token % len(codec.vocabulary) for token in tokens]
    found = pieces(codec, ids)
    assert len(found) == len(ids)
    assert "".join(found) == spoken(codec, ids)
    starts = [spoken(codec, ids[:end]) for end in range(len(ids) + 1)]
    assert found == [after.removeprefix(before) for before, after in pairwise(starts)]


def test_the_pieces_of_a_long_reply_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def counted(codec: Codec, tokens: Sequence[int]) -> str:
        decoded.append(len(tokens))
        return spoken(codec, tokens)

    monkeypatch.setattr("dialog.serve.served.spoken", counted)
    ids = [5 + place % 11 for place in range(400)]
    assert "".join(pieces(CODEC, ids)) == spoken(CODEC, ids)
    assert sum(decoded) < 25 * len(ids)


def test_a_body_of_the_client_is_parsed_like_one_of_ours() -> None:
    request = parsed(
        b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "n": null}', ChatRequest
    )
    assert (request.n, request.messages[0].text) == (1, "a")
