"""How objects show themselves in JupyterLab: small tables, in which every text is escaped."""

from collections.abc import Sequence
from html import escape

from .extras import needs_extra

SHOWN = 20  # rows of a table


class Markup(str):
    """Text that is HTML already."""


def shaded(text: str, share: float, title: str = "") -> Markup:
    """A text on a colour of viridis, dark at 0 and light at 1."""
    with needs_extra("notebooks"):
        from matplotlib import colormaps
        from matplotlib.colors import to_hex

    background = to_hex(colormaps["viridis"](share))
    colour = "#000" if share > 0.5 else "#fff"
    look = f"background: {background}; color: {colour}; white-space: pre"
    return Markup(f'<span style="{look}" title="{escape(title)}">{escape(text)}</span>')


def table(rows: Sequence[Sequence], header: Sequence = (), caption: str = "") -> str:
    """The first rows of a table, a line that says how many follow, and a caption."""
    lines = [_row(row, "td") for row in rows[:SHOWN]]
    if len(rows) > SHOWN:
        lines.append(f"<tr><td></td><td>and {len(rows) - SHOWN} more</td></tr>")
    head = f"<thead>{_row(header, 'th')}</thead>" if header else ""
    return f"<p>{escape(caption)}</p><table>{head}<tbody>{''.join(lines)}</tbody></table>"


def _row(values: Sequence, tag: str) -> str:
    """One line of a table; `tag` is "td" or "th"."""
    texts = [value if isinstance(value, Markup) else escape(str(value)) for value in values]
    cells = [f'<{tag} style="text-align: left">{text}</{tag}>' for text in texts]
    return f"<tr>{''.join(cells)}</tr>"
