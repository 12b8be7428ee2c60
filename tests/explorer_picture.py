"""README's picture of the explorer: `PYTHONPATH=tests python -m explorer_picture`, after `make explorer`."""

import io
import tempfile
import time
from pathlib import Path

import browser
from PIL import Image

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "build" / "explorer.html"
PICTURE = ROOT / "figures" / "results" / "explorer.png"
SIZE = (1180, 760)
SHOWN = (100, 140, 1000, 700)  # left, top, right and lower edge: the menus and the first tokens
COLOURS = 255


def main() -> None:
    """Takes the picture with Chromium."""
    with tempfile.TemporaryDirectory() as folder, browser.browser(folder) as tab:
        tab.open(PAGE.as_uri(), *SIZE)
        time.sleep(3)  # until the page has drawn itself
        shot = Path(folder) / "shot.png"
        tab.picture(shot)
        picture = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB").crop(SHOWN)
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(PICTURE)


if __name__ == "__main__":
    main()
