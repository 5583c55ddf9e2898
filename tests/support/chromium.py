"""Headless Chromium, driven by the DevTools protocol over a pipe."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""


class Browser:
    """A tab of a browser."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
        self._buffer, self._number = b"", 0
        self.faults: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = ""
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        self._writing.close()
        self._reading.close()

    def view(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window, and its colours."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = 20) -> Any:
        """The value of an expression, as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, script
            time.sleep(0.05)
        return value

    def key(self, name: str) -> None:
        """Press a key, such as Tab or Enter."""
        code = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self._call(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **more
            )

    def type(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", ""):
            message["sessionId"] = self._session
        self._writing.write(json.dumps(message).encode() + b"\0")
        self._writing.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.faults.append(json.dumps(answer["params"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._reading.fileno(), 1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with its files in a folder."""
    to_read, to_write = os.pipe(), os.pipe()

    def pipes() -> None:
        apart = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_write[0], to_read[1])]
        os.dup2(apart[0], 3)
        os.dup2(apart[1], 4)

    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
    options += [f"--user-data-dir={folder}", "--hide-scrollbars", "--disable-dev-shm-usage", "--lang=en"]
    process = subprocess.Popen(
        [CHROMIUM, *options, "about:blank"],
        preexec_fn=pipes,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_write[0])
    os.close(to_read[1])
    tab = Browser(to_read[0], to_write[1])
    try:
        yield tab
    finally:
        tab.close()
        process.kill()
        process.wait()
