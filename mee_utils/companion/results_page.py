"""The generated pages: templates (`pages/*.md`) over stored tables.

RESULTS.md answers seven questions; `figures/results` has what stands behind it (the ledger, every rule,
published numbers, bugs, speed), the headline of README as a picture, and the same as data. Of README.md only
what stands between marks is generated. A template calls `table("name")`, `picture("name", "caption")` and
`believe("question")`; single numbers come from `facts`.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jinja2
import pandas as pd

from ..common.files import ROOT, complete_file
from . import answers, facts, ledger_page, reference_tables
from .figures import label
from .result_data import result_data
from .statements import BUGS
from .stored_tables import DATA, FIGURES, PROFILES, StoredTables, markdown

BEGIN = "<!-- {part}: python -m mee_utils results -->"
END = "<!-- end of {part} -->"
INDEX = ROOT / "notebooks" / "index.ipynb"
FOLDER = FIGURES / "results"
HEADLINE = "headline"
TABLES: dict[str, Callable[[StoredTables], pd.DataFrame]] = answers.TABLES | reference_tables.TABLES
PICTURES = {  # name in a template -> figures of notebooks, the first of which that is stored is shown
    "settling": ("01_monotonicity/figure_1_settled",),
    "price": ("00_models/cost_at_full_depth", "00_models/seeds"),
    "easy": ("02_saturation/reached_by_layer", "02_saturation/circularity"),
    "cheap": ("04_contrastive_decoding/ranking", "03_pruning/recall_by_k"),
    "who": ("05_mee_classifiers/ranking",),
    "limits": ("08_results/limits", "08_results/score_against_flops"),
    "figure_1": ("01_monotonicity/figure_1_settled",),
    "figure_2": ("01_monotonicity/figure_2_confidence",),
    "figure_3": ("01_monotonicity/figure_3_token_90",),
    "main_figure": ("08_results/main_figure",),
    "bugs": ("08_results/published_bugs_switched_on",),
}


def update() -> None:
    """Writes README's generated part, RESULTS.md, and the pages, the picture and the data behind it."""
    FOLDER.mkdir(exist_ok=True)
    for name, text_of in PAGES.items():
        text = text_of()
        with complete_file(ROOT / name) as path:
            path.write_text(text, encoding="utf-8")
    with complete_file(FOLDER / f"{HEADLINE}.png") as path:
        path.write_bytes(headline_picture())


def readme() -> str:
    """The text of README.md with its generated parts renewed."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for part, text_of in {"numbers": findings, "notebooks": list_of_notebooks}.items():
        begin = BEGIN.format(part=part)
        end = END.format(part=part)
        before, rest = text.split(begin, 1)
        _, after = rest.split(end, 1)
        text = f"{before}{begin}\n{text_of()}{end}{after}"
    return text


def list_of_notebooks() -> str:
    """The table of notebooks and their questions, as the index of the notebooks has it."""
    index = json.loads(INDEX.read_text(encoding="utf-8"))
    lines = [line for line in index["cells"][0]["source"] if line.startswith("|")]
    return "".join(lines).replace("](", "](notebooks/")


def findings() -> str:
    """The generated part of README.md: a picture, a table, and what was found in five sentences."""
    stored = StoredTables()
    return _filled("findings", ROOT, table=markdown(answers.winners(stored)))


def page(name: str, folder: Path = FOLDER) -> str:
    """The text of one generated page, which will stand in a folder."""
    return _filled(name, folder, table=partial(_table_with_sources, folder))


def _filled(name: str, folder: Path, table) -> str:
    """A template with its fields filled in; a field that is missing is an error."""
    stored = StoredTables(folder)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    sentences = {field: sentence(stored) for field, sentence in reference_tables.SENTENCES.items()}
    return environment.get_template(f"{name}.md").render(
        **facts.facts(stored),
        **sentences,
        message=headline_message(),
        table=table,
        picture=partial(_picture, stored),
        believe=partial(_believe, answers.beliefs(stored)),
        sections=ledger_page.sections(stored),
        bugs=BUGS,
        label=label,
        bug_effect=partial(reference_tables.bug_effect, stored),
        bug_table=partial(_bug_table, folder),
        of_tasks=facts.of_tasks,
        percent=facts.percent,
        percents=facts.percents,
        word=facts.WORDS.__getitem__,
        published_settled=reference_tables.PUBLISHED_SETTLED,
    )


def _table_with_sources(folder: Path, field: str) -> str:
    """A table, and links to the stored ones that it comes from."""
    return _with_sources(TABLES[field], folder)


def _bug_table(folder: Path, bug: str) -> str:
    return _with_sources(partial(reference_tables.bug_table, bug=bug), folder)


def _with_sources(table_of: Callable[[StoredTables], pd.DataFrame], folder: Path) -> str:
    stored = StoredTables(folder)
    table = table_of(stored)
    if table.empty:
        return (
            "Not measured yet: run `make measure` and `make bench`, then `make reproduce` and `make results`."
        )
    return "\n\n".join(part for part in (markdown(table), stored.sources()) if part)


def _picture(stored: StoredTables, name: str, caption: str) -> str:
    """A stored figure with its caption; that of real text, if there is one."""
    for figure in PICTURES[name]:
        for profile in PROFILES:
            path = FIGURES / profile / f"{figure}.png"
            if path.exists():
                data = "" if profile == PROFILES[0] else f", {DATA[profile]} data"
                return f"![{caption}{data}]({stored.link(path)})"
    return f"*This figure is not stored yet: {caption[0].lower()}{caption[1:]}.*"


def _believe(beliefs: dict[str, list[dict]], question: str) -> str:
    """What we believe about a question, what it rests on, and where it may not hold."""
    lines = []
    for belief in beliefs[question]:
        text = f"**We believe:** {belief['text']} *It may not hold for {belief['fails']} {_tests(belief)}*"
        lines.append(text)
    return "\n\n".join(lines)


def _tests(belief: dict) -> str:
    """How many tests of the ledger speak for a belief and against it."""
    counts = {kind: belief[kind] or "none" for kind in ("supported", "contradicted", "undecided")}
    if set(counts.values()) == {"none"}:
        return "It rests on the table above."
    verdicts = f"{counts['supported']} for, {counts['contradicted']} against"
    return f"Ledger tests: {verdicts}, {counts['undecided']} undecided."


def headline_message() -> str:
    """What the headline picture shows, in a sentence."""
    from .headline import headline_message as message

    return message(answers.headlines()[answers.REAL], "Real text: exits")


def headline_picture() -> bytes:
    """The headline of README as PNG: real text, with synthetic data behind it."""
    from . import figures
    from .headline import draw_headline
    from .results import png

    figures.use_style()
    real, synthetic = (answers.headlines()[profile] for profile in (answers.REAL, answers.SYNTHETIC))
    figure = draw_headline(real, synthetic, "the same on synthetic data", message=headline_message())
    return png(figure)


def headline_table_text() -> str:
    """What the headline picture shows, as CSV."""
    tables = [table.assign(profile=name) for name, table in answers.headlines().items()]
    return pd.concat(tables).to_csv(index=False, float_format="%.4f", lineterminator="\n")


def data() -> str:
    """RESULTS.json: ledger, answers and fronts as data."""
    return json.dumps(result_data(), indent=1, ensure_ascii=False) + "\n"


PAGES: dict[str, Callable[[], str]] = {  # file -> what makes its text
    "RESULTS.md": partial(page, "results", ROOT),
    "README.md": readme,
    "figures/results/ledger.md": partial(page, "ledger"),
    "figures/results/rules.md": partial(page, "rules"),
    "figures/results/published.md": partial(page, "published"),
    "figures/results/bugs.md": partial(page, "bugs"),
    "figures/results/speed.md": partial(page, "speed"),
    "figures/results/headline.csv": headline_table_text,
    "figures/results/RESULTS.json": data,
}
