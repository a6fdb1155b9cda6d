"""A headless Chromium over its debugging pipe: open a page, run script in it, press keys."""

import json
import os
import shutil
import subprocess
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_KEYS = {"ArrowDown": 40, "ArrowUp": 38, "Enter": 13, "Tab": 9}


def find_browser():
    """The path of a Chromium, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. A context manager; the process ends with it."""

    def __init__(self, program, profile, *, width=1280, height=900):
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()

        def connect():
            os.dup2(to_read, 13)
            os.dup2(to_write, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"]
        self._process = subprocess.Popen(
            [
                program,
                *options,
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            preexec_fn=connect,  # noqa: PLW1509  # two dup2 calls, nothing that could wait for a lock
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._session = 0, b"", None
        self.errors = []

    def __enter__(self):
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, address):
        """Goes to an address."""
        self._call("Page.navigate", url=address)

    def size(self, width, height):
        """Sets the window's inner size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def value(self, script):
        """What an expression gives."""
        result = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, script, *, timeout_s=15):
        """Waits until an expression is true in the page."""
        code = (
            f"new Promise((done) => {{ const end = Date.now() + {1000 * timeout_s};"
            f"const look = () => ({script}) ? done(true) : Date.now() > end ? done(false) "
            ": setTimeout(look, 20); look(); })"
        )
        assert self.value(code), f"{script} did not come true; status: " + str(
            self.value("document.body.innerText.slice(0, 600)")
        )

    def press(self, key):
        """A key, as a person presses it."""
        code = _KEYS.get(key, ord(key[0].upper()))
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def type(self, text):
        """Text, where the cursor is."""
        self._call("Input.insertText", text=text)

    def picture(self, path):
        """A screenshot as PNG."""
        import base64

        data = self._call("Page.captureScreenshot", format="png")["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def _call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"]["exceptionDetails"].get("text"))
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.errors.append(answer["params"]["entry"]["text"])

    def _read(self):
        while b"\0" not in self._rest:
            piece = os.read(self._from, 1 << 16)
            assert piece, "the browser ended"
            self._rest += piece
        one, _, self._rest = self._rest.partition(b"\0")
        return json.loads(one)
