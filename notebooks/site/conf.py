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

from mee_utils.companion.address import HOST, repository

ROOT = Path(__file__).parents[2]
# folder of a chapter -> what it was run on
DATA = {"notebooks": "on synthetic data", "real": "on real text", "smollm2": "with SmolLM2"}
EXPLORER = ROOT / "build" / "explorer.html"  # of `make explorer`
NO_EXPLORER = "<!doctype html><title>Explorer</title><p>Run <code>make explorer</code>: it writes this page."
CARDS = [f"mee_utils/checkpoints/{name}/README" for name in ("small", "real", "smollm2")]
REFERENCE = {
    "Results": [
        "RESULTS",
        *(
            f"figures/results/{name}"
            for name in ("ledger", "rules", "published", "bugs", "speed", "referees")
        ),
    ],
    "The library": ["mee_utils/USING", "notebooks/profiles/README", "mee_utils/README"],
    "The repository": ["DATA", *CARDS, "CONTRIBUTING", "CHANGELOG"],
}
HIDDEN = "application/x-mee-digest"  # an output that holds what pages do not show
# the line by which two runs of a figure's table are compared; it names the figure
DIGEST = re.compile(r"^(\w+): \d+ rows x .* sha256 \w+\n*", re.M)

project = html_title = "Early exiting in T5 generation"
extensions = ["myst_nb"]
root_doc = "README"
pages = ["notebooks/[0-9]*.ipynb", "figures/results/*.md", "figures/*/*.ipynb"]
top = ["README.md", "RESULTS.md", "DATA.md", "CONTRIBUTING.md", "CHANGELOG.md"]
include_patterns = [
    *top,
    "mee_utils/README.md",
    "mee_utils/USING.md",
    "notebooks/profiles/README.md",
    "mee_utils/checkpoints/*/README.md",
    *pages,
]
exclude_patterns = [".*", "build", "tests"]

nb_execution_mode = "off"
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

html_theme = "sphinx_book_theme"
html_theme_options = {"navbar_persistent": [], "use_fullscreen_button": False, "show_toc_level": 2}
ADDRESS = repository() or f"{HOST}{os.environ.get('GITHUB_REPOSITORY', '')}"  # there the pages are built
if ADDRESS != HOST:
    html_theme_options |= {
        "repository_url": ADDRESS,
        "repository_branch": "main",
        "use_repository_button": True,
        "use_issues_button": True,
        "launch_buttons": {"binderhub_url": "https://mybinder.org", "notebook_interface": "jupyterlab"},
    }
html_context = {"default_mode": "auto"}
html_static_path = ["site.css", "site.js", str(files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf")]
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_show_copyright = html_show_sphinx = html_use_index = False
html_math_renderer = "mathml"
mathml = LatexToMathML()


def navigation():
    """The chapters, once each, and what else there is, as hidden lists on the first page."""
    chapters = [f"notebooks/{path.stem}" for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))]
    for caption, names in ({"Chapters": chapters} | REFERENCE).items():
        yield "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""])


def switch(path):
    """A line that leads from a chapter to the same one on other data; none where there is no other."""
    folders = [ROOT / "notebooks", *sorted(path.parent for path in ROOT.glob(f"figures/*/{path.name}"))]
    if len(folders) < 2:
        return ""
    words = []
    for folder in folders:
        name = DATA.get(folder.name, f"profile {folder.name}")
        target = os.path.relpath(folder / path.name, path.parent)
        words.append(f"**{name}**" if folder == path.parent else f"[{name}]({target})")
    return "This chapter " + " · ".join(words) + "\n\n"


def with_switch(notebook, path):
    """A notebook with its switch below the title; only that of the first folder stands in the navigation."""
    first = notebook["cells"][0]
    title, _, rest = "".join(first["source"]).partition("\n")
    first["source"] = f"{title}\n\n{switch(path)}{rest.lstrip()}"
    if path.parent.name != "notebooks":
        notebook["metadata"]["orphan"] = True
    return notebook


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
    names = []
    for output in cell["outputs"]:
        lines.append("".join(output.get("data", {}).pop(HIDDEN, "")))
        names += re.findall("<title>(.*?)</title>", "".join(output.get("data", {}).get("image/svg+xml", "")))
        if output["output_type"] == "stream":
            text = "".join(output["text"])
            lines.append(text)
            output["text"] = DIGEST.sub("", text)
    for name in names + DIGEST.findall("\n".join(lines)):
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
        notebook = with_switch(notebook, path)
        source[0] = json.dumps(notebook)
        return
    text = without_links_to_folders(source[0], path.parent)
    text = re.sub(r"```mermaid\n(.*?)```", boxes_of_chart, text, flags=re.S)
    if page == root_doc:
        text = with_explorer(text) + "".join(navigation())
    source[0] = text


def with_explorer(text):
    """The first page with the explorer behind its picture."""
    return re.sub(r"!\[The explorer.*?\)", r'<a href="explorer.html">\g<0></a>', text)


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
    """The first page under the name that servers look for, and the explorer."""
    if error:
        return
    shutil.copy(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")
    explorer = Path(app.outdir) / EXPLORER.name
    if EXPLORER.exists():
        shutil.copy(EXPLORER, explorer)
    elif not explorer.exists():
        explorer.write_text(NO_EXPLORER, encoding="utf-8")


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", prepare)
    app.connect("build-finished", finish)
    app.add_html_math_renderer("mathml", formula(False), formula(True))
