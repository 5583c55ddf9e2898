"""Settings of a request to the server: what changes a run's, what is refused."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from dialog.decoding.config import DecodeConfig
from dialog.serve.served import ServedDialog
from dialog.serve.settings import decoding
from dialog.trained import TrainedModel
from lm.serve.answers import Answer, Choice, Form, Token
from lm.serve.failure import ApiError
from lm.serve.protocol import COLDEST, MAX_BEAMS, ChatRequest, InspectRequest, refused
from tests.support.chat_requests import parsed_chat


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ({}, {}),
        ({"temperature": 0}, {"method": "beam", "beam": 1}),
        ({"temperature": 0.5}, {"method": "sample", "temperature": 0.5}),
        ({"top_p": 1}, {}),
        ({"n": 9}, {"nbest": 9}),
        ({"n": 2}, {}),
        ({"max_completion_tokens": 2}, {"max_length": 2}),
        ({"max_tokens": 1024}, {"max_length": 500}),
        ({"decode": {"method": "sample"}}, {"method": "sample"}),
        ({"seed": 3, "decode": {"no_repeat_ngram": 2}}, {"seed": 3, "no_repeat_ngram": 2}),
        (
            {"seed": 3, "decode": {"method": "sample", "seed": 4, "beam": 10}},
            {"method": "sample", "seed": 4},
        ),
    ],
)
def test_parameters_change_the_settings_of_the_run(more: dict[str, Any], changed: dict[str, Any]) -> None:
    usual = DecodeConfig()
    assert decoding(parsed_chat(**more), usual) == usual.model_copy(update=changed)
    diverse = DecodeConfig(groups=5, diversity=1.0)
    if "method" in changed:
        assert decoding(parsed_chat(**more), diverse) == usual.model_copy(update=changed)


@pytest.mark.parametrize(
    ("more", "param", "says"),
    [
        ({"temperature": 0.8, "decode": {"beam": 4}}, "decode.beam", "with decode.method = sample; leave it"),
        ({"decode": {"top_p": 0.9}}, "decode.top_p", "or choose decode.method = sample"),
        ({"temperature": 0, "decode": {"seed": 9}}, "decode.seed", "with decode.method = beam"),
        ({"temperature": 0.8, "decode": {"method": "beam"}}, "temperature", "leave it out"),
        ({"decode": {"select": "mbr", "nbest": 1}}, "decode.select", "on a single candidate; raise"),
    ],
)
def test_settings_without_effect_are_refused(more: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(ApiError, match=rf"^(decode\.)?{param}.* has no effect .*{says}") as refused:
        decoding(parsed_chat(**more), DecodeConfig())
    assert (refused.value.status, refused.value.param) == (400, param)


def test_settings_of_the_run_give_way_to_those_of_a_request() -> None:
    sampled = DecodeConfig(method="sample", top_p=0.9)
    assert decoding(parsed_chat(top_p=1), sampled).top_p == 1
    chosen = DecodeConfig(select="mmi", mmi_run="back", candidates=9, length_penalty=1.0)
    assert decoding(parsed_chat(temperature=0), chosen) == DecodeConfig(beam=1), "greedy"
    for own in ({"select": "mmi"}, {"candidates": 20}, {"mmi_weight": 1.0}, {"beam": 4}):
        found = decoding(parsed_chat(temperature=0, decode=own), chosen)
        assert (found.select, found.length_penalty) == ("mmi", 1.0), "what a request asks for holds"
    long, diverse = DecodeConfig(min_length=5), DecodeConfig(groups=5, diversity=1.0)
    assert decoding(parsed_chat(decode={"max_length": 3}), long).min_length == 3
    assert decoding(parsed_chat(decode={"beam": 4}), diverse).groups == 1
    assert decoding(parsed_chat(decode={"beam": 20}), diverse).groups == 5
    found = decoding(parsed_chat(temperature=0, decode={"beam": 4, "groups": 2}), diverse)
    assert (found.beam, found.groups, found.diversity) == (4, 2, 1.0)


def test_a_greedy_sample_is_refused() -> None:
    with pytest.raises(ApiError, match=r"^temperature: 0 is greedy search; leave it or decode.method out"):
        decoding(parsed_chat(temperature=0, decode={"method": "sample"}), DecodeConfig(temperature=0.7))


def test_the_replies_to_a_prompt_have_its_indices() -> None:
    one, two = Choice((Token("a", "a"),), finished=True), Choice((Token("b", "b"),), finished=True)
    joined = Answer.joined([Answer((one,), 3), Answer((one, two), 4)], each=2)
    assert ([*joined.numbered], joined.read) == ([(0, one), (2, one), (3, two)], 7)
    form = Form(chat=False, model="m", fingerprint="f", listed=None)
    assert [choice["index"] for choice in form.whole(joined)["choices"]] == [0, 2, 3]


@pytest.mark.parametrize("name", ["nbest", "candidates"])
def test_more_replies_than_are_kept_are_refused_by_their_own_name(name: str) -> None:
    with pytest.raises(ApiError, match=f"n: 7 replies, but decode.{name} = 3; lower n") as refused:
        decoding(parsed_chat(n=7, decode={"select": "mbr", name: 3}), DecodeConfig())
    assert refused.value.param == "n"
    usual = DecodeConfig(select="mbr", candidates=6)
    raised = decoding(parsed_chat(n=7), usual)
    assert (raised.nbest, raised.candidates) == (7, 7), "the run's own settings grow with n"


def test_errors_speak_of_lists_as_json_does() -> None:
    with pytest.raises(ApiError, match=r"^decode\.forbid: must be a list$"):
        decoding(parsed_chat(decode={"forbid": "a"}), DecodeConfig())
    with pytest.raises(ValidationError) as found:
        parsed_chat(stop=["a"] * 5)
    assert str(refused(found.value, ChatRequest)) == "stop: must have at most 4 items, not 5"


def test_settings_of_the_run_itself_have_no_limit() -> None:
    usual = DecodeConfig(beam=100, max_length=900, temperature=0.001)
    assert decoding(parsed_chat(), usual) == usual
    with pytest.raises(ApiError, match=r"decode\.beam: must be at most 50"):
        decoding(parsed_chat(decode={"beam": 101}), usual)


def test_a_reply_is_no_longer_than_its_model_has_room_for() -> None:
    assert decoding(parsed_chat(max_tokens=400), DecodeConfig(), longest=18).max_length == 18
    with pytest.raises(ApiError, match=r"decode\.max_length: must be at most 18"):
        decoding(parsed_chat(decode={"max_length": 19}), DecodeConfig(max_length=8), longest=18)


@pytest.mark.parametrize(
    ("name", "phrases", "says"),
    [
        ("forbid", ["well"] * 17, "at most 16 phrases"),
        ("require", ["well"] * 17, "at most 16 phrases"),
        ("forbid", ["well " * 65], "at most 64 tokens"),
        ("begin", "well " * 65, "at most 64 tokens"),
        ("forbid", ["\ud800"], "text that can be encoded in UTF-8"),
    ],
)
def test_phrases_of_a_request_are_few_and_short(
    tiny: TrainedModel, name: str, phrases: Any, says: str
) -> None:
    run = ServedDialog(tiny, "", 0)
    with pytest.raises(ApiError, match=f"decode.{name}: .*{says}") as refused:
        run.chat_job(parsed_chat(decode={name: phrases}))
    assert (refused.value.status, refused.value.param) == (400, f"decode.{name}")
    decode = tiny.config.decode.model_copy(update={name: tuple(phrases) if name != "begin" else phrases})
    own = replace(tiny, config=tiny.config.model_copy(update={"decode": decode}))
    ServedDialog(own, "", 0).chat_job(parsed_chat())


def test_no_request_names_a_folder() -> None:
    decode = {"select": "mmi", "mmi_run": "/etc", "candidates": 5, "nbest": 2}
    with pytest.raises(ApiError, match="only the server names folders"):
        decoding(parsed_chat(decode=decode), DecodeConfig())


@pytest.mark.parametrize(
    ("more", "rows"), [({}, 3), ({"decode": {"beam": 9}}, 9), ({"temperature": 0.8, "n": 7}, 7)]
)
def test_the_rows_of_a_request_are_its_beams_or_samples(
    tiny: TrainedModel, more: dict[str, Any], rows: int
) -> None:
    assert ServedDialog(tiny, "", 0).chat_job(parsed_chat(**more)).rows == rows


def test_a_temperature_that_may_overflow_is_refused() -> None:
    cold = {"method": "sample", "temperature": COLDEST / 2}
    with pytest.raises(ApiError, match=f"^decode.temperature: must be at least {COLDEST} here$"):
        decoding(parsed_chat(decode=cold), DecodeConfig())
    assert decoding(parsed_chat(decode=cold), DecodeConfig(method="sample", temperature=COLDEST / 4))


def test_every_reply_that_a_search_may_keep_can_be_inspected() -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "well"}]}
    assert InspectRequest.model_validate(body | {"choice": MAX_BEAMS - 1}).choice == MAX_BEAMS - 1
    with pytest.raises(ValidationError, match="less than 50"):
        InspectRequest.model_validate(body | {"choice": MAX_BEAMS})
