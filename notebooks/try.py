# /// script
# requires-python = ">=3.11"
# dependencies = ["mee-utils", "vl-convert-python"]
#
# [tool.uv.sources]
# mee-utils = { path = ".." }
# ///
"""The explorer on a sentence of yours: `uv run notebooks/try.py "A little girl is playing on the beach."`

uv installs what is named above into an environment of its own. A T5 of 4 million parameters, trained for
exits, translates the sentence into French; the page shows what each layer predicts and where tokens exit.
"""

import sys
import tempfile
import webbrowser
from pathlib import Path

from mee_utils import MeeError, explore, load_model
from mee_utils.common.files import PACKAGE

SENTENCE = "A little girl in a red dress is playing on the beach."


def main(words: list[str]) -> int:
    """Writes the page, opens it in a browser, and says where it is."""
    sentence = " ".join(words) or SENTENCE
    model = load_model(PACKAGE / "checkpoints" / "real" / "calm")
    try:
        page = explore(model, f"translate English to French: {sentence}")
        path = page.save(Path(tempfile.mkdtemp()) / "explorer.html")
    except MeeError as error:
        print(error, file=sys.stderr)
        return 2
    webbrowser.open(path.as_uri())
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
