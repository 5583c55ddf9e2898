"""Commands of chat: settings, lists of replies, help, and mistakes in them."""

from dataclasses import replace
from pathlib import Path

import pytest

from dialog.chat.conversation import Conversation
from dialog.chat.repl import COMMANDS, Repl
from dialog.chat.settings import split_settings
from dialog.trained import TrainedModel
from lm.errors import ConfigError
from tests.support.toy_chat import conversation
from tests.support.toy_responder import ToyResponder


def test_settings_reach_the_model() -> None:
    chat = conversation()
    chat.feed("/beam 7")
    assert (chat.conversation.decode.method, chat.conversation.decode.beam) == ("beam", 7)
    chat.feed("/greedy")
    assert (chat.conversation.decode.method, chat.conversation.decode.beam) == ("beam", 1)
    (line,) = chat.feed("/sample T=0.5 top_k=4 top_p=0.9 on=components")
    decode = chat.conversation.decode
    assert (decode.method, decode.temperature, decode.top_k, decode.top_p) == ("sample", 0.5, 4, 0.9)
    assert decode.temperature_on == "components"
    assert "T=0.5" in line
    before = chat.feed("hello")
    chat.feed("/undo")
    chat.feed("/seed 99")
    assert chat.feed("hello") != before
    assert chat.conversation.decode.seed == 99
    assert chat.feed("/quit") == []
    assert chat.ended


@pytest.mark.parametrize("command", ["/greedy", "/sample T=0.5"])
def test_commands_that_do_not_fit_diverse_groups_end_them(command: str) -> None:
    chat = Repl(Conversation(ToyResponder()))
    alone = Repl(Conversation(ToyResponder()))
    assert chat.feed("/set beam=10 groups=5 diversity=2.0") != chat.feed("/set")
    told = chat.feed(command)
    assert told == [*alone.feed(command), "(without groups, diversity)"]
    assert (chat.conversation.decode.groups, chat.conversation.decode.diversity) == (1, 0.5)
    assert chat.feed(command) == told[:-1]


def test_greedy_ends_what_would_choose_another_reply() -> None:
    chat = conversation()
    chat.feed("/set length_penalty=1 select=mbr candidates=9 mbr_metric=chrf")
    assert chat.feed("/greedy") == ["(greedy)", "(without length_penalty, select, candidates, mbr_metric)"]
    decode = chat.conversation.decode
    assert (decode.beam, decode.length_penalty, decode.select, decode.candidates) == (1, 0.0, "score", 0)


def test_only_what_takes_the_most_probable_tokens_is_called_greedy() -> None:
    chat = conversation()
    assert chat.feed("/beam 1") == ["(greedy)"]
    assert chat.feed("/beam 2") == ["(beam search, 2 beams)"]
    for settings in ("length_penalty=1", "length_penalty=0 select=mbr candidates=9"):
        chat.feed(f"/set {settings}")
        assert chat.feed("/beam 1") == ["(beam search, 1 beam)"]
    chat.feed("/set length_penalty=0 select=score")
    chat.feed("/sample")
    chat.feed("/set select=mbr candidates=9")
    (told,) = chat.feed("/seed 3")
    assert told.endswith("best of 9)")


def test_help_explains_the_scores_that_are_shown() -> None:
    chat = conversation()
    assert "log-probabilities" in " ".join(chat.feed("/help"))
    chat.feed("/set select=mbr candidates=9")
    told = " ".join(chat.feed("/help"))
    assert "mean similarity" in told
    assert "nats" not in told


def test_impossible_settings_are_refused_at_once(tiny: TrainedModel) -> None:
    chat = Repl(Conversation(tiny))
    before = chat.conversation.decode
    for setting, says in (
        ('require=["zebra"]', "decode.require 'zebra': not in the run's vocabulary"),
        ("select=mmi mmi_run=nowhere", "nowhere: no such run"),
        ("select=mbr nbest=1", "decode.select = mbr: has no effect on a single candidate"),
    ):
        (told,) = chat.feed(f"/set {setting}")
        assert says in told
    assert chat.conversation.decode == before


def test_nbest_lists_equal_samples_once() -> None:
    chat = conversation()
    chat.feed("/nbest 5")
    exchange = chat.conversation.say("hello")
    a, b = exchange.hypotheses[:2]
    exchange = replace(exchange, hypotheses=(a, b, a, a), texts=("yes", "no", "yes", "yes"))
    listed = chat._replied(exchange)
    assert [line.split(maxsplit=2)[2] for line in listed] == ["yes  (3 times)", "no …"]
    assert [float(line.split()[1]) for line in listed] == [pytest.approx(x.score, abs=1e-3) for x in (a, b)]


def test_nbest_lists_scores_and_says_the_first() -> None:
    chat = conversation()
    chat.feed("/nbest 3")
    lines = chat.feed("hello")
    assert [line.split()[:2] for line in lines] == [["1.", "-1.500"], ["2.", "-2.500"], ["3.", "-3.500"]]
    assert (chat.conversation.exchanges[0].reply.text or "(says nothing)") in lines[0]


def test_nbest_lists_the_replies_to_the_last_line_at_once() -> None:
    chat = conversation()
    chat.feed("hello")
    told, *lines = chat.feed("/nbest 3")
    assert told == "(the 3 best)"
    texts = chat.conversation.exchanges[0].texts[:3]
    assert [line.split(maxsplit=2)[:2] for line in lines] == [
        ["1.", "-1.500"],
        ["2.", "-2.500"],
        ["3.", "-3.500"],
    ]
    assert all((text or "(says nothing)") in line for text, line in zip(texts, lines, strict=True))
    assert chat.feed("/nbest 1") == ["(the best)"]


def test_nbest_says_if_the_last_reply_kept_fewer() -> None:
    chat = conversation()
    chat.feed("/nbest 2")
    chat.feed("hello")
    told, *lines = chat.feed("/nbest 5")
    assert told == "(the 5 best; the last reply has only 2)"
    assert [line.split()[0] for line in lines] == ["1.", "2."]
    chat.feed("/set nbest=1")
    chat.feed("hello")
    assert chat.feed("/nbest 5") == ["(the 5 best; the last reply has only 1)"]


def test_help_lists_every_command_and_show_the_context() -> None:
    chat = conversation()
    listed = chat.feed("/help")
    assert [line.split()[0] for line in listed if line.startswith("/")] == [f"/{name}" for name in COMMANDS]
    assert max(map(len, [*listed, *chat.feed("/set")])) <= 60, "whole on a narrow terminal"
    assert "nats" in " ".join(listed)
    chat.feed("hello")
    shown = chat.feed("/show")
    assert shown[0] == "(beam search, 10 beams)"
    assert shown[2] == "A  hello"
    assert len(shown) == 4


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/rset", "did you mean /reset?"),
        ("/", "/help"),
        ("/nbets 3", "did you mean /nbest?"),
        ("/beam", "use /beam N"),
        ("/beam x", "/beam: decode.beam must be an integer, got 'x'"),
        ("/beam 0", "decode.beam must be greater than or equal to 1, got 0"),
        ("/beam 1000000", "decode.beam must be at most 1,000"),
        ("/beam 9000000000000", "decode.beam must be at most 1,000"),
        ("/beam " + "9" * 5000, "no setting is longer"),
        ("/beam 1 2", "use /beam N"),
        ("/nbest -1", "from 1 to 1000"),
        ("/nbest " + "9" * 5000, "from 1 to 1000"),
        ("/seed -1", "decode.seed must be greater than or equal to 0"),
        ("/sample T=0", "decode.temperature must be greater than 0"),
        ("/sample T=nan", "decode.temperature"),
        ("/sample T=inf", "decode.temperature"),
        ("/sample top_p=2", "decode.top_p must be less than or equal to 1"),
        ("/sample top_k=0.5", "decode.top_k must be an integer"),
        ("/sample on=words", "temperature_on"),
        ("/sample hotter", "as in /sample KEY=VALUE"),
        ("/sample tmperature=1", "did you mean decode.temperature?"),
        ("/set beam", "as in /set KEY=VALUE"),
        ("/set =3", "/set: unknown key"),
        ("/set bmea=3", "/set: unknown key decode.bmea; did you mean decode.beam?"),
        ("/set method=smaple", "must be 'beam' or 'sample', got 'smaple'; did you mean sample?"),
        ("/set beam=3 nbest=none", "decode.nbest must be an integer"),
        ("/set beam=3 decode.beam=4", "/set decode.beam: given twice; leave out one of the two"),
        ("/set beam=3.5", "decode.beam must be an integer, got 3.5"),
        ("/set train.seed=2", "train.seed: fixed when the run was trained"),
        ("/set extends=x", "/set extends: fixed when the run was trained; only decode.* can be set here"),
        ("/set min_length=40", "must be at most max_length = 30"),
        ("/set max_length=5000", "decode.max_length must be at most 1,000"),
        ("/set beam=" + "9" * 5000, "no setting is longer"),
        ("/set beam=" + "[" * 150, "decode.beam must be an integer"),
        ("/set temperature=0x" + "f" * 9000, "no setting is longer"),
        ("/set top_p=0.9", "/set decode.top_p: has no effect with decode.method = beam; leave it out, or"),
        ("/set method=sample beam=3", "decode.beam: has no effect with decode.method = sample"),
        ("/sample beam=3", "/sample decode.beam: has no effect with decode.method = sample"),
        ("/seed 4", "/seed decode.seed: has no effect with decode.method = beam"),
        ("/retry", "nothing to answer again"),
        ("/retry 2", "use /retry"),
        ("/history", "nothing was said yet"),
        ("/load", "use /load FILE"),
        ("/load nothing.jsonl", "nothing.jsonl: no such file"),
        ("/load .", "not a regular file"),
        ("/load /dev/zero", "not a regular file"),
        ("/replay", "use /replay FILE"),
        ("/replay nothing.jsonl", "nothing.jsonl: no such file"),
        ("/probs 0", "from 1 to 1000"),
        ("/reset now", "use /reset"),
        ("/save", "use /save FILE"),
        ("/save talk.jsonl", "nothing to save yet"),
    ],
)
def test_bad_commands_get_one_line_and_change_nothing(line: str, says: str, in_tmp: Path) -> None:
    chat = conversation()
    before = (chat.conversation.decode, chat.shown)
    (answer,) = chat.feed(line)
    assert says in answer
    assert (chat.conversation.decode, chat.shown) == before
    assert chat.conversation.exchanges == []
    assert list(in_tmp.iterdir()) == []


def test_set_changes_any_setting_of_decoding() -> None:
    chat = conversation()
    assert chat.feed("/set beam=3 no_repeat_ngram = 2") == ["(beam=3 no_repeat_ngram=2)"]
    assert chat.feed("/set decode.method=sample temperature=1") == ["(method=sample)"]
    assert chat.feed("/set beam=3") == ["(as it was)"]
    chat.feed('/set forbid = ["i do not", "know"] nbest=4')
    assert (chat.conversation.decode.forbid, chat.conversation.decode.nbest) == (("i do not", "know"), 4)
    chat.feed("/set forbid=[] nbest=5")
    decode = chat.conversation.decode
    assert (decode.beam, decode.no_repeat_ngram, decode.method) == (3, 2, "sample")
    listed = [line.split()[0] for line in chat.feed("/set") if not line.startswith(" ")]
    assert [line.split("=")[0] for line in listed] == list(decode.model_dump())
    again = " ".join(line for line in listed if not line.endswith("="))  # others are not set
    assert "require=[]" in again
    assert chat.feed(f"/set {again}") == ["(as it was)"]


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ('forbid=["see x=1", "a  b"] nbest = 3', ['forbid=["see x=1", "a  b"]', "nbest=3"]),
        ("begin=x = y decode.beam = 4", ["begin=x = y", "decode.beam=4"]),
        ('begin = "so = this is"  nbset=4', ['begin="so = this is"', "nbset=4"]),
        ("require=[\"a] b\", 'c'] seed=2", ["require=[\"a] b\", 'c']", "seed=2"]),
        ("nonsense beam=2", ["nonsense beam=2"]),
    ],
)
def test_values_keep_their_blanks_and_equals_signs(line: str, settings: list[str]) -> None:
    assert split_settings(line) == settings


def test_a_line_of_brackets_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"^\[{40}…: no setting is longer than 200 characters$"):
        split_settings("[" * 100_000)


def test_a_single_reply_is_not_numbered() -> None:
    for command in ("/nbest 1", "/greedy", "/sample", "/set nbest=1"):
        chat = conversation()
        chat.feed(command)
        (answer,) = chat.feed("hello")
        assert answer == (chat.conversation.exchanges[0].reply.text or "(says nothing)"), command
    chat.feed("/nbest 3")
    chat.feed("/set nbest=1")
    (answer,) = chat.feed("hello")
    assert not answer.startswith("1.")
