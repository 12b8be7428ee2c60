"""Files of publishers, checked and complete; what is there already is not fetched again."""

import hashlib
import http.client
import shutil
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...common.errors import MeeError, one_line
from ...common.files import complete_file
from .origins import Origin, RawFile

AT_A_TIME = 8  # SumPubMed is 600 small files
SECONDS = 60  # without an answer
AGENT = {"User-Agent": "mee-utils/1.0 (reproducible research)"}  # some publishers refuse Python's own name


def download(origin: Origin, folder: Path) -> None:
    """Fetches the files of a corpus into a folder, those that it lacks.

    Raises:
        MeeError: the publisher does not answer, has no such file, or another one than the checksum says.
    """

    def fetch(file: RawFile) -> None:
        path = folder / file.name
        if not path.exists():
            download_file(origin.url + urllib.parse.quote(file.name), path, file.checksum)

    with ThreadPoolExecutor(AT_A_TIME) as threads:
        for _ in threads.map(fetch, origin.files):
            pass  # the first error ends the loop, and what has not begun is left


def download_file(url: str, path: Path, checksum: str | None = None) -> None:
    """Fetches one file; it appears at `path` when it is complete and has the right checksum."""
    with complete_file(path) as partial:
        expected_size = _copy(url, partial)
        content = partial.read_bytes()
        if expected_size and len(content) != int(expected_size):
            size = f"{len(content)} of {expected_size} bytes"
            raise MeeError(f"{url} broke off after {size}: run the command again.")
        if checksum:
            kind, expected = checksum.split(":")
            digest = digest_of(kind, content)
            if digest != expected:
                differs = f"its {kind} digest is {digest[:12]}..., expected {expected[:12]}..."
                raise MeeError(f"{url} is not the file that was measured: {differs}")


def _copy(url: str, path: Path) -> str | None:
    """Copies what a URL gives; returns the size that its server announced, if any."""
    request = urllib.request.Request(url, headers=AGENT)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response, path.open("wb") as file:
            shutil.copyfileobj(response, file)
            return response.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        gone = "is not there any more" if error.code in (404, 410) else "was refused"
        raise MeeError(f"{url} {gone} (HTTP {error.code}).") from error
    except (OSError, http.client.HTTPException) as error:
        if getattr(error, "filename", None) or "No space left" in str(error):
            raise  # of our own disk
        reason = getattr(error, "reason", error)
        raise MeeError(f"{url} does not answer ({one_line(reason)}): check the network.") from error


def digest_of(kind: str, content: bytes) -> str:
    """A digest as hexadecimal digits; "git" is the name that git gives to a file of this content."""
    if kind == "git":
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    return hashlib.new(kind, content, usedforsecurity=False).hexdigest()
