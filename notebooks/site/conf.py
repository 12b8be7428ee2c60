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
HIDDEN = "application/x-mee-digest"  # an output that holds what pages do not show
# the line by which two runs of a figure's table are compared, and that of a drawing; it names the figure
DIGEST = re.compile(r"^(\w+): (?:\d+ rows x .* sha256 \w+|a drawing$)\n*", re.M)

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
    """A cell as the site shows it; `folder` is that of its notebook."""
    if cell["cell_type"] == "markdown":
        cell["source"] = with_links("".join(cell["source"]), folder)
    if cell["cell_type"] == "code":
        cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "hide-input"]
        hide_digests(cell)
    return cell


def with_links(text, folder):
    """The text with links that lead somewhere: what another profile's `folder` lacks, the sources' has."""

    def link(match):
        target = match[1]
        if not (folder / target).with_suffix(".ipynb").exists():
            target = os.path.relpath(ROOT / "notebooks" / target, folder)
        return f"]({target}"

    return re.sub(r"\]\(([\w./]+)(?=[)#])", link, text)


def hide_digests(cell):
    """Takes out the lines with digests of a cell; the name of its figure becomes the picture's text."""
    lines = []
    for output in cell["outputs"]:
        lines.append("".join(output.get("data", {}).pop(HIDDEN, "")))
        if output["output_type"] == "stream":
            text = "".join(output["text"])
            lines.append(text)
            output["text"] = DIGEST.sub("", text)
    for name in DIGEST.findall("\n".join(lines)):
        cell["metadata"]["mystnb"] = {"image": {"alt": name.replace("_", " ")}}
    cell["outputs"] = [
        output for output in cell["outputs"] if output.get("text") != "" and output.get("data") != {}
    ]


def prepare(app, page, source):
    """What a page's text is before it is read."""
    path = app.env.doc2path(page)
    if path.suffix == ".ipynb":
        notebook = json.loads(source[0])
        notebook["cells"] = [shown(cell, path.parent) for cell in notebook["cells"]]
        source[0] = json.dumps(notebook)
        return
    text = without_links_to_folders(source[0], path.parent)
    text = re.sub(r"```mermaid\n(.*?)```", boxes_of_chart, text, flags=re.S)
    added = {root_doc: navigation, "notebooks/site/ledger": ledgers}.get(page, tuple)
    source[0] = text + "".join(added())


def without_links_to_folders(text, folder):
    """The text in which a link to a folder, which is no page, is only its words."""

    def link(match):
        target_is_folder = (folder / match[2]).is_dir()
        return match[1] if target_is_folder else match[0]

    return re.sub(r"\[([^]]+)\]\(([^):#]+)\)", link, text)


def boxes_of_chart(match):
    """A list in place of a chart, whose script would come from another host."""
    boxes = re.findall(r'\["(\w+)(.*?)"', match[1])
    return "\n".join(f"- `{name}`{text}" for name, text in boxes)


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
