"""The HTML edition (`make site`): Sphinx over the executed notebooks and the pages beside them.

Nothing is executed, and no page asks another host for anything: formulas become MathML here, with their font.
"""

import json
import os
import re
import shutil
from importlib.resources import files
from pathlib import Path

from docutils.nodes import SkipNode
from math_core import LatexToMathML

ROOT = Path(__file__).parents[2]
LEDGERS = {path.parts[-3]: path for path in sorted(ROOT.glob("figures/*/08_results/ledger.csv"))}
DIGEST = re.compile(
    r"^(\w+): \d+ rows x .* sha256 \w+\n*", re.M
)  # to compare two runs with; names the figure

project = html_title = "Early exiting in T5 generation"
extensions = ["myst_nb"]
root_doc = "README"
pages = ["notebooks/[0-9]*.ipynb", "notebooks/site/ledger.md", "figures/*/*.ipynb"]
include_patterns = ["README.md", "RESULTS.md", "mee_utils/README.md", *pages]
exclude_patterns = [".*", "build", "tests", "mee_utils/*/**"]

nb_execution_mode = "off"
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

html_theme = "sphinx_book_theme"
html_theme_options = {"navbar_persistent": [], "use_fullscreen_button": False, "show_toc_level": 2}
html_context = {"default_mode": "auto"}
html_static_path = ["site.css", "site.js", str(files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf")]
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_show_copyright = html_show_sphinx = html_use_index = False
html_math_renderer = "mathml"
mathml = LatexToMathML()


def navigation():
    """The chapters of every profile, and what else there is, as hidden lists on the first page."""
    others = sorted({path.parent.name for path in ROOT.glob("figures/*/[0-9]*.ipynb")})
    folders = {"Chapters": "notebooks"} | {f"Chapters, profile {name}": f"figures/{name}" for name in others}
    parts = {caption: sorted((ROOT / folder).glob("[0-9]*.ipynb")) for caption, folder in folders.items()}
    parts["Reference"] = [ROOT / page for page in ("RESULTS", "notebooks/site/ledger", "mee_utils/README")]
    for caption, paths in parts.items():
        names = [str(path.relative_to(ROOT).with_suffix("")) for path in paths]
        if names:
            yield "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""])


def ledgers():
    """The ledger of every profile, as a table."""
    for name, path in LEDGERS.items():
        options = f":file: /{path.relative_to(ROOT)}\n:header-rows: 1\n:widths: auto\n:class: ledger"
        yield f"\n## Profile {name}\n\n```{{csv-table}}\n{options}\n```\n"


def shown(cell, folder):
    """A cell with its code folded, without digests, and with the name of its figure in words.

    A link that leads to no notebook of its own `folder`, another profile's, leads where it does from its source.
    """
    if cell["cell_type"] == "markdown":
        source = lambda link: os.path.relpath(ROOT / "notebooks" / link, folder)
        there = lambda link: (
            f"]({link[1] if (folder / link[1]).with_suffix('.ipynb').exists() else source(link[1])}"
        )
        cell["source"] = re.sub(r"\]\(([\w./]+)(?=[)#])", there, "".join(cell["source"]))
    if cell["cell_type"] == "code":
        cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "hide-input"]
        for output in [output for output in cell["outputs"] if output["output_type"] == "stream"]:
            for name in DIGEST.findall(text := "".join(output["text"])):
                cell["metadata"]["mystnb"] = {"image": {"alt": name.replace("_", " ")}}
            output["text"] = DIGEST.sub("", text)
        cell["outputs"] = [output for output in cell["outputs"] if output.get("text") != ""]
    return cell


def prepare(app, page, source):
    """What a page's text is before it is read."""
    path, text = app.env.doc2path(page), source[0]
    if path.suffix == ".ipynb":
        notebook = json.loads(text)
        notebook["cells"] = [shown(cell, path.parent) for cell in notebook["cells"]]
        source[0] = json.dumps(notebook)
        return
    unlinked = lambda link: link[1] if (path.parent / link[2]).is_dir() else link[0]  # a folder is no page
    boxes = lambda chart: re.findall(r'\["(\w+)(.*?)"', chart[1])
    listed = lambda chart: "\n".join(f"- `{name}`{what}" for name, what in boxes(chart))
    text = re.sub(r"\[([^]]+)\]\(([^):#]+)\)", unlinked, text)
    text = re.sub(
        r"```mermaid\n(.*?)```", listed, text, flags=re.S
    )  # its script would come from another host
    added = {root_doc: navigation, "notebooks/site/ledger": ledgers}.get(page, tuple)
    source[0] = text + "".join(added())


def formula(displayed):
    """What writes a formula into a page."""

    def visit(writer, node):
        writer.body.append(mathml.convert_with_local_state(node.astext(), displaystyle=displayed))
        raise SkipNode

    return visit, None


def finish(app, error):
    """The first page under the name that servers look for."""
    if not error:
        shutil.copy(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", prepare)
    app.connect("build-finished", finish)
    app.add_html_math_renderer("mathml", formula(False), formula(True))
