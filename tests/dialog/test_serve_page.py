"""The page in headless Chromium: with a keyboard, on a narrow screen, with hostile text."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from dialog.serve.served import ServedDialog
from lm.serve.app import Server
from lm.serve.gate import Policy
from lm.serve.server import LOOPBACK, Address
from tests.support.chromium import CHROMIUM, Browser, browser
from tests.support.tiny_dialog import tiny_dialog

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium")]
MARKUP = "<img src=x onerror=document.title='broken'> <b>well</b>"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    runs = {name: ServedDialog(tiny_dialog(), "", 0) for name in ("one", "<i>two</i>")}
    listener = Address(port=0).listen()
    server = uvicorn.Server(uvicorn.Config(Server(runs, Policy(hosts=LOOPBACK)).app, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(20)


@pytest.fixture(params=[(1280, 800, False), (400, 800, True)], ids=["wide and light", "narrow and dark"])
def page(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Browser]:
    """The page after a line of the user."""
    width, height, dark = request.param
    with browser(tmp_path / "profile") as tab:
        tab.view(width, height, dark=dark)
        tab.open(url)
        tab.wait("document.querySelectorAll('#models input').length == 2")
        tab.wait("document.activeElement.id == 'line'")
        tab.type(MARKUP)
        tab.key("Enter")
        tab.wait("document.querySelectorAll('.words').length == 2")
        yield tab
        tab.screenshot(tmp_path / "page.png")
        assert not tab.faults


def test_text_of_users_and_models_is_text(page: Browser) -> None:
    assert page.run("document.querySelector('.said').innerText").endswith(MARKUP)
    assert page.run("document.querySelectorAll('#talk img, #talk b b, #talk i').length") == 0
    assert "<i>two</i>" in page.run("document.querySelectorAll('.reply h3')[1].innerText")
    assert page.run("document.title") == "Highrank: talk and see"


def test_nothing_is_wider_than_the_window(page: Browser) -> None:
    page.run("document.querySelector('.word').click()")
    page.wait("document.querySelector('.bars') != null")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.run("document.getElementById('inspector').scrollWidth <= innerWidth")


def test_a_keyboard_opens_a_word_walks_and_closes(page: Browser) -> None:
    page.run("document.querySelector('.word').focus()")
    page.key("Enter")
    page.wait("document.querySelector('.bars') != null")
    assert page.run("document.querySelectorAll('.prior .legend li').length") == 3
    shares = "[...document.querySelectorAll('.bars .taken .bar i')].map((one) => Number(one.style.flexGrow))"
    assert sum(page.run(shares)) == pytest.approx(1, abs=1e-6)
    assert page.run("document.querySelectorAll('.list .kept').length") > 0
    first = page.run("document.querySelector('.inspector .of').innerText")
    page.key("ArrowRight")
    page.wait(f"document.querySelector('.inspector .of').innerText != {first!r}")
    assert page.run("document.querySelectorAll('.word[aria-pressed=true]').length") == 1
    page.key("Escape")
    assert page.run("document.getElementById('inspector').hidden")
    assert page.run("document.activeElement.classList.contains('word')")


def test_a_reply_that_cannot_be_looked_into_is_a_fault_that_closes(page: Browser) -> None:
    page.run("document.querySelector('.word').click()")
    page.wait("document.querySelectorAll('#inspector .list button').length > 1")
    page.run("window.fetch = () => Promise.reject(new Error('gone'))")
    page.run("[...document.querySelectorAll('#inspector .list button')].at(-1).click()")
    page.wait("document.querySelector('#inspector .fault') != null")
    assert "does not answer" in page.run("document.querySelector('#inspector .fault').innerText")
    page.run("document.querySelector('#inspector button').click()")
    assert page.run("document.getElementById('inspector').hidden")
