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
LEVEL = 6  # of the slider, one below the first at which the sentence comes out right
SLIDE = f"""(() => {{
  const slider = document.querySelector("input[type=range]");
  slider.value = {LEVEL};
  slider.dispatchEvent(new Event("input", {{bubbles: true}}));
}})()"""


def main() -> None:
    """Takes the picture with Chromium."""
    with tempfile.TemporaryDirectory() as folder, browser.browser(folder) as tab:
        tab.open(PAGE.as_uri(), *SIZE)
        time.sleep(3)  # until the page has drawn itself
        tab.run(SLIDE)
        time.sleep(1)
        shot = Path(folder) / "shot.png"
        tab.picture(shot)
        picture = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB").crop(SHOWN)
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(PICTURE)


if __name__ == "__main__":
    main()
