"""A page in headless Chromium, driven through the pipe of its DevTools protocol.

Chromium reads commands from descriptor 3 and writes answers and events to 4, each a JSON text that ends with
a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.parts.figure import NotMeasurableError

_PATIENCE_S: Final = 180.0
"""For one answer, on a busy machine."""
_FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--mute-audio"),
    "--remote-debugging-pipe",
)


class ChromiumError(Exception):
    """Chromium did not answer, or refused a command."""


def chromium() -> str | None:
    """Its path. Returns None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def browser() -> Iterator[Browser]:
    """A fresh Chromium with a profile of its own, which is gone at the end.

    :raises NotMeasurableError: it is not installed.
    """
    path = chromium()
    if path is None:
        raise NotMeasurableError("no Chromium here (Debian's package chromium)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        opened = Browser(path, Path(home))
        try:
            yield opened
        finally:
            opened.close()


class Browser:
    """A running Chromium."""

    def __init__(self, path: str, home: Path) -> None:
        commands, self._send = os.pipe()
        self._receive, answers = os.pipe()
        above = [fcntl(descriptor, F_DUPFD_CLOEXEC, 10) for descriptor in (commands, answers)]
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        linked = [(os.POSIX_SPAWN_DUP2, old, new) for old, new in zip(above, (3, 4), strict=True)]
        self._process = os.posix_spawn(
            path,
            [path, *_FLAGS, f"--user-data-dir={home}", "about:blank"],
            {**os.environ, "HOME": str(home), "TMPDIR": str(home)},
            file_actions=[*quiet, *linked],
            setpgroup=0,
        )
        for descriptor in (commands, answers, *above):
            os.close(descriptor)
        self._unread = b""
        self._numbers = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of one command.

        :raises ChromiumError: it was refused, or no answer came.
        """
        self._numbers += 1
        message = {"id": self._numbers, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._numbers:
                if "error" in answer:
                    raise ChromiumError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def wait_for(self, method: str) -> None:
        """Until an event of this name comes that no one has waited for yet."""
        while not any(event["method"] == method for event in self.events):
            self._next()
        self.events = [event for event in self.events if event["method"] != method]

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._receive, 1 << 20) if ready else b""
            if not data:
                raise ChromiumError("Chromium ended" if ready else f"no answer in {_PATIENCE_S:g} s")
            self._unread += data
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def close(self) -> None:
        """End it and all its processes."""
        for descriptor in (self._send, self._receive):
            os.close(descriptor)
        with suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._process, 0)


class Tab:
    """One page of a browser, at one width."""

    def __init__(self, opened: Browser, width: int, height: int = 900, *, dark: bool = False) -> None:
        self._browser = opened
        target = opened.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = opened.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[theme])

    def open(self, path: Path) -> Self:
        """Load a file, until all of it is there."""
        self._browser.events.clear()
        self._call("Page.navigate", url=path.resolve().as_uri())
        self._browser.wait_for("Page.loadEventFired")
        return self

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is; promises are awaited.

        :raises ChromiumError: it throws.
        """
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise ChromiumError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, such as ``ArrowDown``, to what has the focus."""
        text = {"text": key} if len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def move_to(self, x: float, y: float) -> None:
        """The pointer, to a place of the viewport."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def errors(self) -> list[str]:
        """What the console of the page says that is wrong."""
        self.value("1")  # what was said before this answer has come
        return [text for event in self._browser.events if (text := _complaint(event))]

    def screenshot(self) -> bytes:
        """The whole page as PNG, once it has come to rest: two pictures one after the other are the same."""
        before, now = b"", self._picture()
        while now != before:
            self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            before, now = now, self._picture()
        return now

    def _picture(self) -> bytes:
        return base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)


def _complaint(event: Mapping[str, Any]) -> str:
    method, said = event["method"], event["params"]
    if method == "Runtime.exceptionThrown":
        return json.dumps(said["exceptionDetails"])
    if method == "Runtime.consoleAPICalled" and said["type"] in ("error", "assert"):
        return json.dumps(said["args"])
    if method == "Log.entryAdded" and said["entry"]["level"] == "error":
        return str(said["entry"]["text"])
    return ""
