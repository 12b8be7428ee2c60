"""A headless Chromium that a test can lead by the hand, over its debugging protocol; no driver is needed."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from websocket import create_connection

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
OPTIONS = "--headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-port=0"


class Page:
    """One open tab: what it asked for, what it complained of, what a script finds in it."""

    def __init__(self, socket):
        self.socket = socket
        self.number = 0
        self.events = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def receive(self):
        message = json.loads(self.socket.recv())
        if "method" in message:
            self.events.append(message)
        return message

    def send(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while (message := self.receive()).get("id") != self.number:
            pass
        return message["result"]

    def open(self, address, width=1280, height=900, dark=False):
        """Opens an address in a window of this size and waits until everything is there."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.send("Page.navigate", url=address)
        return self.loaded()

    def loaded(self):
        """Waits until everything is there of what was asked for since the events were cleared."""
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.receive()
        return self

    def run(self, script):
        """What an expression gives; a promise is waited for."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def complaints(self):
        """Exceptions, and errors and warnings of the console."""
        for event in self.events:
            what = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                yield what["exceptionDetails"]["text"]
            elif event["method"] == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning"):
                yield str(what["args"])
            elif event["method"] == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
                yield what["entry"]["text"] + " " + what["entry"].get("url", "")
            elif event["method"] == "Network.loadingFailed":
                yield what["errorText"]

    def requests(self):
        return [
            e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"
        ]

    def picture(self, path, whole=False):
        """Saves what is seen, or the whole page."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(folder):
    """An open page of a browser that keeps its things in `folder`, and is gone afterwards."""
    command = [PROGRAM, *OPTIONS.split(), f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        host = next(filter(None, (re.search(r"ws://([^/]+)", line) for line in process.stderr)))[1]
        pages = []
        while not pages:
            time.sleep(0.1)
            tabs = json.loads(urllib.request.urlopen(f"http://{host}/json", timeout=60).read())
            pages = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
        socket = create_connection(pages[0], timeout=60, suppress_origin=True)
        yield Page(socket)
        socket.close()
    finally:
        process.terminate()
        process.wait(20)
