"""Chromium without a window, driven over its DevTools protocol: for tests and pictures of the status page.

It is Debian's package: ``make chromium`` as root.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

from tests.support.foreign.fetched import NotAvailable

_SECONDS = 30.0
_FIRST_FREE_FD = 5
_KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "ArrowLeft": (37, ""),
    "ArrowRight": (39, ""),
}
"""The number of each key, and what it types."""


class Page:
    """*Not thread-safe.* One page of a browser. ``asked`` are the URLs of all requests that it made."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.asked: list[str] = browser.asked

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is; a promise is awaited."""
        arguments = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = self._call("Runtime.evaluate", arguments)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of the first element that matches."""
        return str(self.value(f"document.querySelector({json.dumps(selector)}).textContent"))

    def rows(self, table: str) -> list[list[str]]:
        """The texts of the cells that are shown of a table's body."""
        shown = "cell => cell.offsetParent !== null"
        found = self.value(
            f"[...document.querySelectorAll({json.dumps(f'#{table} tbody tr')})]"
            f".map(row => [...row.cells].filter({shown}).map(cell => cell.textContent))"
        )
        return [list(map(str, row)) for row in found]

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + _SECONDS
        while not self.value(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press and release a key where the focus is."""
        number, text = _KEYS[key]
        named = {"key": key, "code": key, "windowsVirtualKeyCode": number}
        for kind, more in (("keyDown", {"text": text}), ("keyUp", {})):
            self._call("Input.dispatchKeyEvent", {"type": kind, **named, **more})

    def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Take a picture of what is seen, or of the whole page."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        arguments: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self._call("Page.getLayoutMetrics", {})["cssContentSize"]
            arguments["clip"] = {"x": 0, "y": 0, **{n: size[n] for n in ("width", "height")}, "scale": 1}
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", arguments)["data"]))

    def _call(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._browser.call(method, arguments, self._session)


class Browser:
    """*Not thread-safe.* A process of Chromium, and the pipes to it."""

    def __init__(self, profile: Path) -> None:
        """Raises `NotAvailable`."""
        program = shutil.which("chromium")
        if program is None:
            raise NotAvailable("Chromium is not here: make chromium, as root")
        self.asked: list[str] = []
        self._is_loaded = False
        self._number = 0
        self._buffer = b""
        there, self._out = os.pipe()
        self._in, back = os.pipe()
        # Clear of 3 and 4, which are those of the protocol in the new process.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD) for fd in (there, back)]
        arguments = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
            f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        self._process = os.posix_spawn(
            program, arguments, os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setpgroup=0,
        )  # fmt: skip
        for fd in (there, back, *ends):
            os.close(fd)

    def open(self, url: str, *, width: int, height: int, dark: bool, phone: bool) -> Page:
        """A page of this size and kind, once it has loaded."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        for method, arguments in (
            ("Page.enable", {}),
            ("Network.enable", {}),
            ("Emulation.setDeviceMetricsOverride", size),
            ("Emulation.setEmulatedMedia", {"features": [scheme]}),
            ("Page.navigate", {"url": url}),
        ):
            self._is_loaded = False
            self.call(method, arguments, session)
        while not self._is_loaded:
            self._hear(self._next())
        return Page(self, session)

    def call(self, method: str, arguments: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        """Ask the browser, and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        os.write(
            self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0"
        )
        while True:
            answer = self._next()
            self._hear(answer)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _hear(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Network.requestWillBeSent":
            self.asked.append(message["params"]["request"]["url"])
        if message.get("method") == "Page.loadEventFired":
            self._is_loaded = True

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select([self._in], [], [], _SECONDS)
            assert ready, "Chromium does not answer"
            read = os.read(self._in, 1 << 16)
            assert read, "Chromium has ended"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def close(self) -> None:
        """End it, with its children."""
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._out)
        os.close(self._in)


@contextmanager
def opened(
    url: str, *, width: int = 1100, height: int = 900, dark: bool = False, phone: bool = False
) -> Iterator[Page]:
    """A page in a browser of its own. Raises `NotAvailable`."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile))
        try:
            yield browser.open(url, width=width, height=height, dark=dark, phone=phone)
        finally:
            browser.close()
