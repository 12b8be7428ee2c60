"""Pages as text with fields: `pages/*.md`, filled in by jinja2; a field that is missing is an error."""

import re
from pathlib import Path

import jinja2
import pandas as pd

from ..figures import label

FOLDER = Path(__file__).parent / "pages"


def filled(name: str, **fields) -> str:
    """The page `pages/<name>.md` with its fields filled in."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template(f"{name}.md").render(fields)


def markdown(table: pd.DataFrame) -> str:
    """A table of texts and names as Markdown, without the spaces that only align."""
    shown = table.astype(object).where(table.notna(), "").rename(columns=label)
    text = shown.map(str).to_markdown(index=False, disable_numparse=True)
    return re.sub("-{4,}", "---", re.sub(" {2,}", " ", text))
