"""README's findings, RESULTS.md and the pages in `figures/results`: `make results`.

The text is written by people, in `pages/*.md`. Numbers stand in it by name (`{{ settled_calm }}`, see
`numbers`), tables by the name of a function of `report_tables` (`{{ table("settling") }}`). What the text
says of the numbers is watched by `sentences`: where one is no longer true, `update` says so and writes
nothing.
"""

import json
import re
from collections.abc import Callable
from functools import cache

import pandas as pd

from ...common.files import ROOT, complete_file
from ..address import places, repository
from ..catalogue import BASELINE, MAIN_MODEL, MEE_RULES
from ..figures import label
from ..kinds import COPIES, PLANNED, SEVERAL, VERIFIED
from ..result_tables import KEEPS_IT
from ..running.digests import file_digest
from ..statements import BUGS
from . import cards, report_tables, sentences
from .report_tables import BENCH, FIGURES, QUALITY, stored
from .templates import filled, markdown

INDEX = ROOT / "notebooks" / "index.ipynb"
README_PART = re.compile(r"(<!-- (\w+): make results -->\n).*?(<!-- end of \w+ -->)", re.DOTALL)
PAPERS = {  # heading of the ledger -> how the sources of its statements begin
    "Monotonic Early Exiting (MEE)": r"MEE",
    "Not all FLOPs are created equally": r"Not all FLOPs|Gera",
    "CALM": r"CALM",
    "FREE": r"FREE",
    "The survey of Bajpai and Hanawal": r"Survey",
    "Statements of our own": r"",
}


def update() -> None:
    """Writes README's parts, RESULTS.md, the pages behind it, the data and the cards.

    Raises:
        MeeError: a sentence of the text is not true of the stored tables.
    """
    texts = pages()
    sentences.check(texts)
    for name, text in texts.items():
        with complete_file(ROOT / name) as path:
            path.write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """The text of every generated page, by its path in the repository."""
    names = ("ledger", "rules", "published", "bugs", "speed", "referees")
    behind = {f"figures/results/{name}.md": page(name) for name in names}
    data = json.dumps(as_data(), indent=1, ensure_ascii=False) + "\n"
    front = {"README.md": readme(), "RESULTS.md": page("results"), "CITATION.cff": citation()}
    front["notebooks/try.py"] = try_script()
    return front | behind | {"figures/results/RESULTS.json": data} | cards.pages()


def readme() -> str:
    """README.md with the parts between its marks renewed."""
    index = json.loads(INDEX.read_text(encoding="utf-8"))
    lines = [line for line in index["cells"][0]["source"] if line.startswith("|")]
    notebooks = "".join(lines).replace("](", "](notebooks/")  # the table of the notebooks' own index
    address = repository()
    parts = {"findings": page("findings"), "notebooks": notebooks}
    parts |= {name: filled(name, address=address, places=places(address)) for name in ("links", "clone")}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return README_PART.sub(lambda mark: mark[1] + parts[mark[2]] + mark[3], text)


def citation() -> str:
    """CITATION.cff with the address of the repository, once it has one."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    text = re.sub(r"^repository-code: .*\n", "", text, flags=re.MULTILINE)
    address = repository()
    return (
        text.replace("license: MIT\n", f'license: MIT\nrepository-code: "{address}"\n') if address else text
    )


def try_script() -> str:
    """`try.py`, which gets the library from the repository, or, while that has no address, from beside it."""
    text = (ROOT / "notebooks" / "try.py").read_text(encoding="utf-8")
    address = repository()
    source = f'git = "{address}"' if address else 'path = ".."'
    return re.sub(r"(?<=^# mee-utils = ){.*}$", f"{{ {source} }}", text, flags=re.MULTILINE)


def page(name: str) -> str:
    """One of `pages/*.md` with its numbers and tables filled in; a name that is unknown is an error."""
    fields = {"table": table, "ledger": ledger, "papers": PAPERS, "bugs": BUGS, "label": label}
    return filled(name, **fields, **numbers())


def table(name: str, *arguments) -> str:
    """A table of `report_tables` as Markdown."""
    return markdown(getattr(report_tables, name)(*arguments))


def ledger(paper: str) -> str:
    """The statements of a paper as a table: what was published, and verdict and numbers here."""
    rows = stored("08_results/ledger")
    papers = rows.source.map(
        lambda source: next(p for p, begins in PAPERS.items() if re.match(begins, source))
    )
    rows = rows[papers == paper]
    numbers = rows[["ours", "reason"]].fillna("").agg("; ".join, axis=1).str.strip("; ")
    verdict = "<details><summary>" + rows.verdict + "</summary>"
    cells = verdict + numbers.str.replace("; ", "<br>") + "</details>"
    by_data = rows.assign(cell=cells).pivot(index="claim", columns="data", values="cell")
    first = rows.drop_duplicates("claim").set_index("claim")
    shown = pd.DataFrame(
        {
            "statement": first.statement + " *" + first.source + "*",
            "published": first.published,
            "real text": by_data.real,
            "synthetic data": by_data.synthetic,
            "where": "[" + first.notebook.str[:2] + "](../../notebooks/" + first.notebook + ".ipynb)",
        }
    )
    return markdown(shown.loc[first.index])


@cache
def numbers() -> dict[str, str]:
    """The numbers in the text, by name; of real text, and of CALM's model where no other is named."""
    return _of_models() | _of_decisions() | _of_exits() | _of_smollm2() | _of_ledger()


def real(name: str, **wanted) -> pd.DataFrame:
    """The rows of a table of real text with these values."""
    rows = sentences.real(name)
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    return rows


def percent(share: float, decimals: int = 0) -> str:
    """ "79 %"."""
    return f"{100 * share:.{decimals}f} %"


def span(values: pd.Series, form: Callable = percent) -> str:
    """ "63 % to 82 %": the least and the largest, as one where they read alike."""
    return " to ".join(dict.fromkeys([form(values.min()), form(values.max())]))


def _of_models() -> dict[str, str]:
    """When predictions settle, what training costs, what a shallow decoder keeps, which tokens are easy."""
    settled = real("01_monotonicity/figure_1_settled", layer=4).groupby("model").share.mean()
    seeds = real("retrained/seeds").groupby(["task", "model"]).score.mean().unstack("model")
    lost = seeds.vanilla - seeds.calm
    shallow = report_tables.shallow_decoders().query("data == 'real'")
    rivals = pd.read_csv(BENCH / "rivals.csv").query("profile == 'real' and batch == 1")
    speed = rivals[rivals.decoder_layers == shallow.decoder_layers.iloc[0]].speed
    of_seeds = real("retrained/rivals", decoder_layers=shallow.decoder_layers.iloc[0])
    later = report_tables.layers_later().xs("real").groupby("selected_by").mean()
    return {
        "settled_calm": percent(settled.calm),
        "settled_vanilla": percent(settled.vanilla),
        "points_lost_mean": f"{lost.mean():.1f}",
        "points_lost_most": f"{lost.max():.1f}",
        "shallow_layers": str(shallow.decoder_layers.iloc[0]),
        "shallow_tasks": span(shallow.kept),
        "shallow_range": span(of_seeds.kept),
        "shallow_flops": span(shallow.flops),
        "shallow_whole": span(shallow.whole),
        "shallow_speed": span(speed, "{:.2f}".format),
        "later_by_similarity": f"{later.settled_from.mean_similarity:.1f}",
        "later_by_loss": f"{later.settled_from.loss:.1f}",
        "similar_later_by_loss": f"{later.first_similar.loss:.1f}",
    }


def _of_decisions() -> dict[str, str]:
    """What pruning changes, how well rules rank, and what perfect decisions keep."""
    pruned = real("03_pruning/complete_table", reduction="fixed").set_index("model")
    questions = real("03_pruning/complete_table", model="vanilla", task="question_answering")
    vanilla = questions.set_index("reduction").retained
    decisions = report_tables.decoder_lines("one decision").query("shape == 't5-large'")
    decision = decisions.set_index("what")["median"].map("{:.2f}".format)
    rows = real("05_mee_classifiers/ranking", model=MAIN_MODEL, target="consistency")
    area = rows.groupby(["rule", "task"]).roc_area.mean().groupby("rule").mean()
    oracle = real("08_results/limits_at_equal_flops")
    copied = real("08_results/limits", series="oracle_copy")
    return {
        "vanilla_unpruned": percent(vanilla.unpruned),
        "vanilla_pruned": percent(vanilla.fixed),
        "outputs_changed_calm": percent(pruned.other_output[MAIN_MODEL].max()),
        "outputs_changed_vanilla": percent(pruned.other_output["vanilla"].max()),
        "decision_all": decision["softmax_margin"],
        "decision_few": decision["margin, 64 ids kept"],
        "area_history": f"{area.history:.3f}",
        "area_margin": f"{area.softmax_margin:.3f}",
        "area_states": f"{area[['hidden', 'three_hidden', 'lstm']].max():.3f}",
        "oracle_keeps": percent(oracle.oracle.mean(), 1),
        "oracle_flops": percent(oracle.flops_share.mean()),
        "oracle_charged": percent(oracle.charged_flops.mean()),
        "oracle_exact": percent(oracle.exact_flops.mean()),
        "rule_keeps": span(oracle.rule_kept),
        "oracle_loss": percent(copied.consistency_loss.max()),
    }


def _of_exits() -> dict[str, str]:
    """What rules need for 99 % of the score, and how fast verified exits are."""
    points = real("08_results/score_against_flops", model=MAIN_MODEL)
    points = points[(points.retained >= QUALITY) & ~points.rule.isin(["full_depth", "oracle", "static"])]
    least = points.groupby("task").flops_share.min().clip(upper=1)
    least_whole = points.groupby("task").whole_share.min().clip(upper=1)
    times = "{:.2f}".format
    certain = real("08_results/at_99_percent")
    saving = certain[(certain.verdict == KEEPS_IT) & (certain.flops_share < 1)]
    reliable = saving[saving.rule != "static"].groupby("task").flops_share.min()
    of_vanilla = real("08_results/kept_of_vanilla").query("rule != 'static'")
    keeping = of_vanilla[(of_vanilla.of_vanilla_low >= QUALITY) & (of_vanilla.flops_share < 1)]
    exits = real("08_results/rivals").query(
        "kind == 'best exit rules' and kept >= 0.99 and relative_flops < 1"
    )
    timed = pd.read_csv(BENCH / "exits.csv").query("profile == 'real' and batch == 1")
    speed = timed.set_index(["model", "kind"]).speed.sort_index()
    large = pd.read_csv(BENCH / "shapes.csv").query(
        "profile == 'real' and batch == 1 and shape == 't5-large'"
    )
    simulated = large.set_index("kind").speed.sort_index()
    several = large[large.kind == SEVERAL].set_index("task").speed
    by_task = {f"several_large_{task}": times(of_task) for task, of_task in several.items()}
    by_task |= {f"rules_reliably_{task}": percent(of_task) for task, of_task in reliable.items()}
    return by_task | {
        "rules_at_mean": percent(least.mean()),
        "rules_at_mean_whole": percent(least_whole.mean()),
        "reliable_pairs": str(len(of_vanilla)),
        "tried_pairs": str((certain.rule != "static").sum()),
        "pairs_of_vanilla": str(len(keeping)),
        "exits_of_vanilla": span(exits.groupby("task").relative_flops.min()),
        "exits_of_vanilla_whole": span(exits.groupby("task").relative_whole.min()),
        "mee_cases": str(certain.rule.isin(MEE_RULES).sum()),
        "mee_saving": str(saving.rule.isin(MEE_RULES).sum()),
        "verified_calm": span(speed[MAIN_MODEL, VERIFIED], times),
        "copies_calm": span(speed[MAIN_MODEL, COPIES], times),
        "copies_vanilla": span(speed[BASELINE, COPIES], times),
        "planned_large": span(simulated[PLANNED], times),
        "again": span(timed[timed.model == MAIN_MODEL].again, times),
    }


def _of_smollm2() -> dict[str, str]:
    """When predictions of SmolLM2 settle, what it scores, and how fast it is decoded."""
    agreeing = real("../smollm2/03_pruning/confidence_and_accuracy", task="summarization", layer=24)
    agrees = {f"smollm2_agrees_{row.model}": percent(row.accuracy) for row in agreeing.itertuples()}
    scores = {name: report_tables.score_of_smollm2(name) for name in ("vanilla", MAIN_MODEL)}
    decoded = real("../smollm2/01_monotonicity/replay_against_decoding", task="summarization")
    oracle = decoded.set_index("policy").loc["oracle"]
    peers = report_tables.causal_lines(MAIN_MODEL, "float32").set_index(["decoder", "way"]).sort_index()
    times = "{:.2f}".format
    full = peers.loc[("ours", "full depth")].speed.item()
    drafts = peers.loc[("ours", "exits at a layer, verified")]
    theirs = peers.loc[("transformers", "exits at a layer, verified")]
    return {
        **agrees,
        **{f"smollm2_score_{name}": f"{score:.1f}" for name, score in scores.items()},
        "smollm2_oracle_keeps": percent(oracle.score / oracle.full_score),
        "smollm2_oracle_loses": percent(1 - oracle.score / oracle.full_score),
        "smollm2_oracle_flops": percent(oracle.flops_share),
        "smollm2_full": times(full),
        "smollm2_generate": times(1 / full),
        "smollm2_copies": times(peers.loc[("ours", "copies, verified")].speed.item() / full),
        "smollm2_drafts": span(drafts.speed / full, times),
        "smollm2_theirs": span(theirs.speed, times),
        "smollm2_ours": span(drafts.speed, times),
    }


def _of_ledger() -> dict[str, str]:
    """How many statements there are, and how many have each verdict on real text."""
    verdicts = real("08_results/ledger").verdict
    counts = verdicts.value_counts()
    return {
        "statements": str(len(verdicts)),
        "statements_hold": str(counts.get("holds", 0)),
        "statements_fail": str(counts.get("does not hold", 0)),
        "statements_differ": str(int(counts.filter(like="some tasks").sum())),
        "statements_undecided": str(counts.get("undecided", 0)),
        "statements_untestable": str(counts.get("cannot be tested here", 0)),
    }


def as_data() -> dict:
    """RESULTS.json: numbers of the text, the ledger, the tables of RESULTS.md, and digests of all tables."""
    shown = ("settling", "price", "easy_tokens", "cheap_decisions", "who_decides", "limits", "every_rule")
    records = {name: getattr(report_tables, name)().to_dict("records") for name in shown}
    statements = stored("08_results/ledger").astype(object)
    paths = sorted(path for path in FIGURES.rglob("*.csv") if "/." not in path.as_posix())  # not half-written
    return {
        "about": "The numbers of RESULTS.md and the ledger. Shares are of the model's own full depth.",
        "numbers": numbers(),
        "tables": records,
        "ledger": statements.where(statements.notna(), None).to_dict("records"),
        "digests": {path.relative_to(FIGURES).as_posix(): file_digest(path) for path in paths},
    }
