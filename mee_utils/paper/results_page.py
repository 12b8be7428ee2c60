"""RESULTS.md and the generated part of README.md: templates (results.md, findings.md) over stored numbers.

results.md has one field for each table of `results_tables`. findings.md states single numbers, which the
notebooks have saved (`numbers`): `each("fastest", "{speed:.2f}")` writes one for every task that has it.
"""

import re
from pathlib import Path

import jinja2
import pandas as pd

from ..common.files import ROOT, complete_file, read_yaml
from ..study.figures import label
from .numbers import Numbers, stored_numbers
from .results_tables import FIGURES, PROFILES, SENTENCES, TABLES, StoredTables, with_range

BEGIN = "<!-- numbers: python -m mee_utils results -->"
END = "<!-- end of numbers -->"
FORMATS = read_yaml("study/styles.yaml")["formats"]


def update() -> None:
    """Writes RESULTS.md and the generated part of README.md."""
    for name, text_of in PAGES.items():
        text = text_of()
        with complete_file(ROOT / name) as path:
            path.write_text(text, encoding="utf-8")


def readme() -> str:
    """The text of README.md with its generated part renewed."""
    stored = (ROOT / "README.md").read_text(encoding="utf-8")
    before, rest = stored.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n{findings()}{END}{after}"


def results() -> str:
    """The text of RESULTS.md: every table with a caption, and the list of figures."""
    tables = {field: _table_with_sources(field) for field in TABLES}
    sentences = {field: sentence(StoredTables()) for field, sentence in SENTENCES.items()}
    return _filled("results", figures=_figures(), **sentences, **tables)


def findings() -> str:
    """The generated part of README.md: one table, and what the notebooks found in words."""
    profiles = {name: stored_numbers(FIGURES / name) for name in PROFILES}
    tasks = _tasks(profiles)

    def each(group: str, text: str, profile: str | None = None, task: str | None = None) -> str:
        """ "translation 0.85; translation (real) 0.76": a text for every task, or for some, with its name."""
        shown = [
            f"{numbers['name']} {text.format(**numbers[group])}"
            for numbers in tasks
            if group in numbers and profile in (None, numbers["profile"]) and task in (None, numbers["task"])
        ]
        return "; ".join(shown)

    def faster(group: str) -> int:
        """On how many tasks a rule was faster than full depth in every round."""
        return sum(numbers[group]["lowest"] > 1 for numbers in tasks if group in numbers)

    def untestable(profile: str) -> int:
        """How many statements a profile cannot test."""
        verdicts = profiles[profile]["verdicts"]
        return sum(count for verdict, count in verdicts.items() if verdict.startswith("cannot be tested"))

    decisions = StoredTables().decoder_bench("one decision").query("shape == 't5-large'")
    return _filled(
        "findings",
        table=markdown(_fastest_by_task(tasks)),
        tasks=tasks,
        profiles=profiles,
        each=each,
        faster=faster,
        untestable=untestable,
        decision_in_layers=decisions.set_index("what")["median"].to_dict(),
    )


def markdown(table: pd.DataFrame) -> str:
    """A table as Markdown: numbers by their column's format, names as a reader knows them.

    A text in a column of numbers stays as it is ("none measured").
    """
    shown = table.astype(object).where(table.notna(), "")
    for column in table:
        form = FORMATS.get(column, "")
        shown[column] = [_cell(value, form) for value in shown[column]]
    shown.columns = [label(column) for column in table]
    table = shown.to_markdown(index=False, disable_numparse=True)
    # one long cell would widen its whole column: spaces and rules that only align are left out
    return re.sub("-{4,}", "---", re.sub(" {2,}", " ", table))


def _cell(value, form: str) -> str:
    return f"{value:{form}}" if form and not isinstance(value, str) else label(str(value))


def _tasks(profiles: dict[str, Numbers]) -> list[dict]:
    """The numbers of every task of every profile, with its names."""
    tasks = []
    for profile, stated in profiles.items():
        mark = "" if profile == "small" else f" ({profile})"
        for task in sorted(stated["tasks"]):
            names = {"profile": profile, "task": task, "name": label(task) + mark}
            groups = stated["tasks"][task]
            several = groups.get("fastest_of_several_layers")
            if several:
                several["speeds"] = _speeds(several)
            tasks.append(names | groups)
    return tasks


def _speeds(numbers: dict) -> str:
    """ "1.43 (1.46)": tokens a second and, where they were saved, samples a second, full depth being 1."""
    samples = f" ({numbers['samples_speed']:.2f})" if "samples_speed" in numbers else ""
    return f"{numbers['speed']:.2f}{samples}"


def _fastest_by_task(tasks: list[dict]) -> pd.DataFrame:
    """README's table: the fastest rule that keeps 99 % of the score, beside full depth and a baseline."""
    rows = [
        {
            "profile": numbers["profile"],
            "task": numbers["task"],
            **numbers["full_depth"],
            **numbers["fastest"],
        }
        for numbers in tasks
        if "fastest" in numbers
    ]
    table = pd.DataFrame(rows)
    table["tokens_per_second"] = with_range(table, "speed", "lowest", "highest")
    if "samples_speed" in table:  # a run of before has none
        table["samples_speed"] = table.pop("samples_speed")  # behind tokens
    return table.drop(columns=["speed", "lowest", "highest"])


def _table_with_sources(field: str) -> str:
    """A table, and links to the stored ones that it comes from."""
    stored = StoredTables()
    text = markdown(TABLES[field](stored))
    return f"{text}\n\nFrom {stored.sources()}."


def _figures() -> str:
    """A list of all figures by notebook, those of every profile."""
    lines = []
    for notebook in sorted({path.parent.name for path in FIGURES.glob("*/[0-9]*/*.png")}):
        links = []
        for profile in PROFILES:
            for path in sorted((FIGURES / profile / notebook).glob("*.png")):
                links.append(f"[{path.stem} ({profile})]({path.relative_to(ROOT).as_posix()})")
        lines.append(f"- [{notebook}](notebooks/{notebook}.ipynb): " + ", ".join(links))
    return "\n\n".join(lines)


def _filled(page: str, **fields) -> str:
    """A template of this folder with its fields filled in; a field that is missing is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template(f"{page}.md").render(fields)


PAGES = {"RESULTS.md": results, "README.md": readme}
