"""The ledger as a page: a section per paper, in it what was confirmed, what was not, and what is open.

What was found on real text decides where a statement stands; where it cannot be tested there, the synthetic
data do.
"""

import re
from collections.abc import Iterator

import pandas as pd

from .claims import DIFFERS, FAILS, FAILS_ON_SOME, HOLDS, HOLDS_ON_SOME, UNDECIDED
from .stored_tables import DATA, PROFILES, StoredTables, markdown

PAPERS = {  # heading -> how the sources of its statements begin
    "Monotonic Early Exiting (MEE)": r"MEE",
    "Not all FLOPs are created equally": r"Not all FLOPs|Gera",
    "CALM": r"CALM",
    "FREE": r"FREE",
    "The survey of Bajpai and Hanawal": r"Survey",
    "Statements of our own": r"",
}
CANNOT = "cannot be tested here"
VERDICTS = {  # heading -> the verdicts below it, in the order of the page
    "Confirmed": HOLDS,
    "Confirmed on some tasks": HOLDS_ON_SOME,
    "Different from task to task": DIFFERS,
    "Not confirmed on some tasks": FAILS_ON_SOME,
    "Not confirmed": FAILS,
    "Cannot be tested here": CANNOT,
    "Undecided": UNDECIDED,
}


def ledger(stored: StoredTables) -> pd.DataFrame:
    """Every statement in one row: its paper, where it stands, and verdict and numbers of each profile.

    The columns are `paper`, `stands` (a key of `VERDICTS`), `claim`, `source`, `statement`, `published`,
    `judged_by`, `notebook`, and of each profile `<profile>: verdict` and `<profile>: ours`.
    """
    rows = stored.table("08_results", "ledger")
    for column in ("judged_by", "reason"):
        if column not in rows:  # of an older run
            rows[column] = pd.Series(index=rows.index, dtype=object)
    texts = ["statement", "published", "source", "notebook", "judged_by"]
    newest = rows.sort_values("profile", key=lambda names: names.map(_by_age(rows)), kind="stable")
    table = newest.drop_duplicates("claim").set_index("claim")[texts].fillna("")
    for profile in PROFILES:
        of_profile = rows[rows.profile == profile].set_index("claim")
        table[f"{profile}: verdict"] = _verdicts(of_profile).reindex(table.index)
        table[f"{profile}: ours"] = _numbers(of_profile).reindex(table.index)
    table["stands"] = _stands(rows).reindex(table.index)
    table["paper"] = [_paper(source) for source in table.source]
    return table.reset_index()


def _by_age(rows: pd.DataFrame) -> dict[str, int]:
    """Profile -> its rank: the one with most statements was judged last, and has the present words."""
    return {profile: number for number, profile in enumerate(rows.profile.value_counts().index)}


def _verdicts(rows: pd.DataFrame) -> pd.Series:
    """The verdict in words; where it is not the same on all tasks, with the number of them."""
    of_tasks = " of " + rows.tasks.astype(str)
    counted = {
        HOLDS_ON_SOME: "holds on " + rows.held.astype(str) + of_tasks,
        DIFFERS: "holds on " + rows.held.astype(str) + ", fails on " + rows.failed.astype(str) + of_tasks,
        FAILS_ON_SOME: "does not hold on " + rows.failed.astype(str) + of_tasks,
    }
    verdicts = _present(rows.verdict)
    for verdict, words in counted.items():
        verdicts = verdicts.mask(verdicts == verdict, words)
    return verdicts


def _present(verdicts: pd.Series) -> pd.Series:
    """Verdicts, with the one that was worded differently in older runs."""
    return verdicts.mask(verdicts.str.startswith("cannot be tested"), CANNOT)


def _numbers(rows: pd.DataFrame) -> pd.Series:
    """Our numbers, a line per task, and why others have none."""
    parts = zip(rows.ours.astype(object), rows.reason.astype(object), strict=True)
    texts = ["; ".join(text for text in both if isinstance(text, str)) for both in parts]
    return pd.Series([text.replace("; ", "<br>") for text in texts], index=rows.index, dtype=object)


def _stands(rows: pd.DataFrame) -> pd.Series:
    """Claim -> the heading below which it stands: the first profile that can test it decides."""
    heading_of = {verdict: heading for heading, verdict in VERDICTS.items()}
    by_profile = rows.assign(verdict=_present(rows.verdict)).pivot(
        index="claim", columns="profile", values="verdict"
    )
    decided = by_profile.reindex(columns=PROFILES).where(lambda verdicts: verdicts != CANNOT)
    return decided.bfill(axis=1).iloc[:, 0].fillna(CANNOT).map(heading_of)


def _paper(source: str) -> str:
    return next(paper for paper, pattern in PAPERS.items() if re.match(pattern, source))


def sections(stored: StoredTables) -> Iterator[str]:
    """The page below its title, a paper at a time."""
    table = ledger(stored)
    for paper in PAPERS:
        of_paper = table[table.paper == paper]
        yield f"## {paper}\n\n{_counts(of_paper)}"
        for heading in VERDICTS:
            rows = of_paper[of_paper.stands == heading]
            if len(rows):
                yield _folded(heading, rows) if heading == "Undecided" else _open(heading, rows)


def _counts(rows: pd.DataFrame) -> str:
    """ "Confirmed: 3. Undecided: 5." """
    counts = rows.stands.value_counts()
    return " ".join(f"{heading}: {counts[heading]}." for heading in VERDICTS if heading in counts)


def _open(heading: str, rows: pd.DataFrame) -> str:
    return f"### {heading}\n\n{_table(rows)}"


def _folded(heading: str, rows: pd.DataFrame) -> str:
    return f"<details>\n<summary>{heading} ({len(rows)})</summary>\n\n{_table(rows)}\n\n</details>"


def _table(rows: pd.DataFrame) -> str:
    """A row per statement: what was published, what was found, and where."""
    shown = pd.DataFrame(
        {"statement": rows.statement + " *" + rows.source + "*", "published": rows.published}
    )
    for profile, data in DATA.items():
        verdicts = rows[f"{profile}: verdict"].fillna("not judged")
        shown[f"verdict, {data}"] = "**" + verdicts + "**"
        shown[f"ours, {data}"] = rows[f"{profile}: ours"]
    judged = rows.judged_by.map(lambda quantity: f" (by {quantity})" if quantity else "")
    numbers = rows.notebook.str[:2]
    shown["where"] = "[" + numbers + "](../../notebooks/" + rows.notebook + ".ipynb)" + judged
    return markdown(shown)


def counts(stored: StoredTables) -> dict[str, int]:
    """Heading -> the number of statements below it, over all papers."""
    stands = ledger(stored).stands.value_counts()
    return {heading: int(stands.get(heading, 0)) for heading in VERDICTS}
