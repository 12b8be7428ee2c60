"""How objects show themselves in JupyterLab: small tables, in which every text is escaped."""

from collections.abc import Sequence
from html import escape

SHOWN = 20  # rows of a table


class Markup(str):
    """Text that is HTML already."""


def shaded(text: str, share: float, title: str = "") -> Markup:
    """A text on a colour of viridis, dark at 0 and light at 1."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    look = f"background: {to_hex(colormaps['viridis'](share))}; color: {'#000' if share > 0.5 else '#fff'}"
    return Markup(f'<span style="{look}; white-space: pre" title="{escape(title)}">{escape(text)}</span>')


def table(rows: Sequence[Sequence], header: Sequence = (), caption: str = "") -> str:
    """The first rows of a table, a line that says how many are left out, and a caption."""

    def cell(value) -> str:
        return value if isinstance(value, Markup) else escape(str(value))

    def line(row: Sequence, tag: str) -> str:
        return "".join(f'<{tag} style="text-align: left">{cell(value)}</{tag}>' for value in row)

    lines = [f"<tr>{line(row, 'td')}</tr>" for row in rows[:SHOWN]]
    if len(rows) > SHOWN:
        lines.append(f"<tr><td></td><td>and {len(rows) - SHOWN} more</td></tr>")
    head = f"<thead><tr>{line(header, 'th')}</tr></thead>" if header else ""
    return f"<p>{escape(caption)}</p><table>{head}<tbody>{''.join(lines)}</tbody></table>"
