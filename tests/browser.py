"""Drives headless Chromium over its DevTools protocol, through a pair of pipes: no package but the standard library."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import time

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 180.0  # seconds for an answer: the machine may be busy


def find():
    """Returns the path of Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page of a browser. Use it in a `with` statement."""

    def __init__(self, profile):
        """Starts the browser with a profile of its own in a folder."""
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def wire():
            # Chromium reads commands from descriptor 3 and answers on 4.
            os.dup2(to_browser, 13)
            os.dup2(from_browser, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        command = [find(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self.events = b"", 0, []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *details):
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _message(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("no answer from the browser")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("the browser ended")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def call(self, method, **parameters):
        """Returns the result of a DevTools method; events that come meanwhile are kept in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, path, width=1280, height=900, script=True, dark=None):
        """Opens a file at a width of the window, and waits until it is loaded."""
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [] if dark is None else [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.events.clear()
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        deadline = time.monotonic() + PATIENCE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message(deadline))

    def run(self, expression):
        """Returns the value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def center(self, selector, index=0):
        """Scrolls to an element and returns the middle of its box."""
        place = f"document.querySelectorAll({json.dumps(selector)})[{index}]"
        self.run(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        # A page is told of scrolling in the next frame.
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        box = f"(r => [r.left + r.width / 2, r.top + r.height / 2])({place}.getBoundingClientRect())"
        return self.run(box)

    def move(self, selector, index=0):
        """Moves the pointer onto an element."""
        x, y = self.center(selector, index)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector, index=0):
        """Clicks on an element with the mouse."""
        x, y = self.center(selector, index)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key, code=None, text=""):
        """Presses a key; keys that write something, such as Enter, have a text."""
        virtual = {"windowsVirtualKeyCode": ord(text)} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, text=text, **virtual)

    def type(self, text):
        """Types text where the focus is."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path, top=0, height=3000):
        """Writes a picture of a stretch of the page."""
        width, end = self.run("[innerWidth, document.documentElement.scrollHeight]")
        part = {"x": 0, "y": top, "width": width, "height": min(height, end - top), "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=part)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def complaints(self):
        """Returns console errors and warnings, exceptions and policy violations so far."""
        self.run("0")  # So that what was under way has arrived.
        found = []
        for event in self.events:
            method, details = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(details["exceptionDetails"]["text"])
            elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
                found.append(details["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
                found.append(str(details["args"]))
        return found

    def requests(self):
        """Returns the addresses that the page asked for."""
        events = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["request"]["url"] for event in events]
