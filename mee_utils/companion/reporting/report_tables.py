"""The tables of RESULTS.md and of the pages in `figures/results`: stored tables, chosen and formatted.

A function returns texts as they are shown, a column named as readers see it. Rows of real text come first,
then those of synthetic data.
"""

import numpy as np
import pandas as pd

from ...common.files import PACKAGE, ROOT, read_json
from .. import published_numbers
from ..catalogue import BASELINE, MAIN_MODEL, RULES, SHALLOW
from ..figures import label
from ..kinds import COPIES, LOSSLESS, PLANNED, VERIFIED
from ..result_tables import AGAIN, GPU, KEEPS_IT, one_machine

FIGURES = ROOT / "figures"
BENCH = FIGURES / "bench"
DATA = {"real": "real", "small": "synthetic"}  # profile -> its data, for readers
QUALITY = 0.99
KEYS = ["data", "task"]
PERCENT = "{:.0%}".format
NONE = "–"
PLANNED_WAYS = ("copies, exits or both, planned", "exits by a rule, verified")  # of decoding SmolLM2
LOSSLESS_WAYS = ("full depth", "copies, verified", *PLANNED_WAYS, "exits at a layer, verified")
DRAFTS = {VERIFIED: "exits", COPIES: "copies of the input", PLANNED: "copies, exits or both, planned"}


def stored(table: str) -> pd.DataFrame:
    """A table of every profile that has it, by its path below the profile; `data` and `task` for readers."""
    parts = []
    for profile, data in DATA.items():
        path = FIGURES / profile / f"{table}.csv"
        if path.exists():
            parts.append(pd.read_csv(path).assign(data=data))
    together = pd.concat(parts, ignore_index=True)
    return together.assign(task=together.task.map(label)) if "task" in together else together


def with_range(rows: pd.DataFrame, middle: str, low: str, high: str, form: str = ".2f") -> pd.Series:
    """ "1.26 (1.12 to 1.32)" for every row."""
    texts = [f"{m:{form}} ({a:{form}} to {b:{form}})" for m, a, b in rows[[middle, low, high]].to_numpy()]
    return pd.Series(texts, index=rows.index)


def across(rows: pd.DataFrame, index: list[str], columns: str, values: str) -> pd.DataFrame:
    """A row for each `index` and a column for each value of `columns`, both in the order of the rows."""
    table = rows.pivot(index=index, columns=columns, values=values)[rows[columns].unique()]
    return table.loc[rows.set_index(index).index.unique()].reset_index()


def settling() -> pd.DataFrame:
    """How early predictions are final, and how often confidence never falls."""
    final = stored("01_monotonicity/figure_1_settled").query("layer == 4")
    never = stored("01_monotonicity/strictly_monotonic")
    never = never[(never.kind == "never falling") & (never.after_layer == 0)]
    columns = {}
    for name, rows in {"final after layer 4": final, "confidence never falls": never}.items():
        shares = rows.set_index([*KEYS, "model"]).share.map(PERCENT).unstack("model")
        columns |= {f"{name}, {label(model)}": shares[model] for model in ("vanilla", MAIN_MODEL)}
    return pd.DataFrame(columns).reset_index()


def price() -> pd.DataFrame:
    """Full-depth scores, means over seeds, and what the smallest shallow decoder that keeps 99 % takes."""
    seeds = stored("retrained/seeds")
    means = seeds.groupby([*KEYS, "metric", "model"]).score.mean().unstack("model").reset_index("metric")
    table = pd.DataFrame(
        {
            "metric": means.metric.map(label),
            "score, vanilla": means.vanilla.map("{:.1f}".format),
            "score, CALM": means.calm.map("{:.1f}".format),
            "points lost": (means.vanilla - means.calm).map("{:+z.1f}".format),
        }
    )
    shallow = shallow_decoders().set_index(KEYS)
    table["shallow decoder"] = shallow.decoder_layers.astype(str) + " layers"
    columns = {"kept": "share of vanilla's score", "flops": "decoder FLOPs", "whole": "all FLOPs"}
    for column, name in columns.items():
        table[f"its {name}"] = shallow[column].map(PERCENT)
    return table.reset_index()


def shallow_decoders() -> pd.DataFrame:
    """Of each profile the smallest decoder trained shallow that keeps 99 % of the score on every task.

    Means over seeds of what is `kept`, and of FLOPs: the decoder's (`flops`) and all (`whole`).
    """
    ways = stored("08_results/rivals")
    ways = ways[(ways.kind == SHALLOW) & (ways.model != BASELINE)]
    layers = ways.setting.str.removesuffix(" layers").astype(int)
    ways = ways.assign(decoder_layers=layers, flops=ways.relative_flops, whole=ways.relative_whole)
    means = ways.groupby([*KEYS, "decoder_layers"])[["kept", "flops", "whole"]].mean().reset_index()
    least = means.groupby(["data", "decoder_layers"]).kept.min().reset_index()
    enough = least[least.kept >= QUALITY].groupby("data").decoder_layers.min()
    return means[means.decoder_layers == means.data.map(enough)]


def easy_tokens() -> pd.DataFrame:
    """Where prefixes become similar to the last state, and how many layers later difficult tokens settle."""
    table_1 = stored("02_saturation/table_1")
    chosen = (table_1.model == MAIN_MODEL) & (table_1.selected_by == "mean_similarity")
    similar = table_1[chosen & (table_1.property == "first_similar")]
    depth = stored("01_monotonicity/figure_1_settled").groupby("data").layer.max()
    percent = (100 * similar["mean"] / similar.data.map(depth)).map("{:.0f}".format)
    layers = similar.assign(percent=percent).pivot(index=KEYS, columns="group", values="percent")
    later = layers_later().xs("loss", level="selected_by")
    table = pd.DataFrame(
        {
            "first similar state, easy prefixes (% of the depth)": layers.easy,
            "first similar state, difficult prefixes (% of the depth)": layers.difficult,
            "tokens of high loss: first similar state, layers later": later.first_similar.map(
                "{:+z.1f}".format
            ),
            "tokens of high loss: final prediction, layers later": later.settled_from.map("{:+z.1f}".format),
        }
    ).reset_index()
    published = {"data": "published", "task": "summarization"} | dict(
        zip(table.columns[2:4], ["40", "81"], strict=True)
    )
    return pd.concat([pd.DataFrame([published]), table])


def layers_later() -> pd.DataFrame:
    """How many layers later difficult tokens are similar to the last state, and final."""
    rows = stored("02_saturation/three_selections").query(f"model == '{MAIN_MODEL}'")
    means = rows.pivot(index=[*KEYS, "selected_by", "property"], columns="group", values="mean")
    return (means.difficult - means.easy).unstack("property")[["first_similar", "settled_from"]]


def cheap_decisions() -> pd.DataFrame:
    """The margin over all vocabulary tokens and over 64, and contrast as a confidence."""
    rows = (
        stored("03_pruning/complete_table").query(f"model == '{MAIN_MODEL}'").set_index([*KEYS, "reduction"])
    )
    spent = rows.flops_share.map(PERCENT).unstack("reduction")
    changed = rows.other_token.unstack("reduction").fixed.map("{:.2%}".format)
    area = stored("04_contrastive_decoding/ranking").query(f"model == '{MAIN_MODEL}'")
    area = area.groupby([*KEYS, "rule"]).roc_area.mean().unstack("rule")
    area = area.map("{:.3f}".format, na_action="ignore").fillna("too few tokens to rank")
    table = {
        "decoder FLOPs, whole vocabulary scored": spent.unpruned,
        "decoder FLOPs, 64 tokens scored": spent.fixed,
        "output tokens changed by pruning": changed,
        "AUROC, margin": area.unpruned,
        "AUROC, weighted contrast": area.weighted,
        "AUROC, JSD contrast": area.jsd,
    }
    return pd.DataFrame(table).reset_index()


def who_decides() -> pd.DataFrame:
    """Of each family of rules the fewest FLOPs with which one reliably keeps 99 and 95 % of the score.

    `half-width` is how wide intervals are: what is lost by less cannot be told from nothing.
    """
    parts = [stored(f"08_results/at_{kept}_percent").assign(kept=f"{kept}%") for kept in (99, 95)]
    rules = pd.concat(parts)
    keys = [*KEYS, "kept"]
    safe = rules[(rules.verdict == KEEPS_IT) & (rules.flops_share < 1)]
    least = safe.assign(family=safe.rule.map(family)).groupby([*keys, "family"]).flops_share.min()
    shares = least.unstack("family").reindex(pd.MultiIndex.from_frame(rules[keys].drop_duplicates()))
    shares = shares[[name for name in dict.fromkeys(map(family, RULES)) if name in shares]]
    cells = shares.map(lambda share: "none" if np.isnan(share) else _work(share))
    wide = (rules.high - rules.low).groupby([rules[key] for key in keys]).median() / 2
    cells["half-width"] = wide.map("{:.1%}".format)
    return cells.reset_index()


def _work(share: float) -> str:
    """FLOPs in percent; a rule that saves less than a twentieth hardly exits."""
    return f"{share:.0%}" if share < 0.95 else "hardly exits"


def family(rule: str) -> str:
    """The family of a rule, as readers know it."""
    if rule == "history":
        return "history of predictions"
    return "fixed layer" if rule == "static" else RULES[rule].family


def limits() -> pd.DataFrame:
    """What perfect decisions keep and cost, and the best rule for as few FLOPs."""
    rows = stored("08_results/limits_at_equal_flops")
    table = {
        "decoder FLOPs, decisions free": rows.flops_share.map(PERCENT),
        "decoder FLOPs, charged": rows.charged_flops.map(PERCENT),
        "oracle keeps": rows.oracle.map("{:.1%}".format),
        "oracle keeps, exact states (FLOPs)": rows.exact.map("{:.1%}".format)
        + rows.exact_flops.map(" ({:.0%})".format),
        "best rule at no more FLOPs keeps": rows.rule_kept.map("{:.1%}".format, na_action="ignore"),
    }
    return pd.concat([rows[KEYS], pd.DataFrame(table)], axis=1)


def every_rule() -> pd.DataFrame:
    """Every rule on real text: what it is, its AUROC, and its FLOPs by four criteria on each task."""
    reliable = stored("08_results/at_99_percent")
    kept = reliable[reliable.verdict == KEEPS_IT]
    points = stored("08_results/score_against_flops").query(f"model == '{MAIN_MODEL}'")
    at_mean = points[points.retained >= QUALITY].groupby([*KEYS, "rule"], as_index=False).flops_share.min()
    at_loss = stored("08_results/at_equal_loss").query("wanted == 0.05")
    guaranteed = stored("08_results/calibrated").query(
        "kind == 'consistency' and bound == 'hoeffding_bentkus' and delta == 0.1"
    )
    columns = {}
    criteria = [at_mean, kept, at_loss, guaranteed]
    shares = [rows[rows.data == "real"].set_index(["rule", "task"]).flops_share for rows in criteria]
    for task in reliable.task[reliable.data == "real"].unique():
        texts = [by.xs(task, level="task").map(_spent).rename(number) for number, by in enumerate(shares)]
        columns[task] = pd.concat(texts, axis=1).fillna(NONE).agg(" / ".join, axis=1)
    table = pd.DataFrame(columns)
    areas = stored("06_survey_rules/rules").query("data == 'real'").set_index("rule").roc_area
    spent = shares[0].clip(upper=1).unstack("task").reindex(table.index).fillna(1).mean(axis=1)
    order = spent.sort_values(kind="stable").index
    table = table.loc[[rule for rule in order if rule in RULES and rule not in ("full_depth", "oracle")]]
    table.insert(0, "AUROC", areas.map("{:.3f}".format, na_action="ignore").reindex(table.index))
    table.insert(0, "family", [family(rule) for rule in table.index])
    return table.rename_axis("rule").reset_index().assign(rule=lambda rows: rows.rule.map(label))


def _spent(share: float) -> str:
    """FLOPs in percent; where nothing is saved, or nothing passes, a dash."""
    return NONE if np.isnan(share) or share >= 1 else f"{100 * share:.0f}"


def settled_as_published() -> pd.DataFrame:
    """MEE's Figure 1 at the two layers of twelve that its text names, beside ours."""
    rows = stored("01_monotonicity/figure_1_settled").query(f"model == '{MAIN_MODEL}' and layer in (2, 4)")
    cells = with_range(rows, "share", "low", "high", ".1%")
    ours = rows.assign(cell=cells, task=rows.task + ", " + rows.data)[["task", "layer", "cell"]]
    theirs = pd.DataFrame({"task": "published", "layer": [2, 4], "cell": ["75%", "90%"]})
    table = across(pd.concat([theirs, ours]), ["layer"], "task", "cell")
    return table.rename(columns={"layer": "final after layer (of 12)"})


def saturation() -> pd.DataFrame:
    """MEE's Table 1 beside ours: easy and difficult prefixes, selected as published."""
    rows = stored("02_saturation/table_1").query(f"model == '{MAIN_MODEL}'")
    depth = stored("01_monotonicity/figure_1_settled").groupby("data").layer.max()
    tables = []
    for data, part in rows.groupby("data", sort=False):
        table = published_numbers.published_saturation(part, depth[data])
        tables.append(
            table.assign(task=table.task.where(table.task == "published", table.task + f", {data}"))
        )
    table = pd.concat(tables, ignore_index=True)
    names = {
        "prefix_tokens": "prefix length",
        "similar_states": "layers with a similar state",
        "first_similar": "first similar state",
        "rises_after_0": "similarity rises strictly from the first layer on",
    }
    properties = table.property.replace(names).str.replace(
        "rises_after_", "similarity rises strictly after layer "
    )
    table["property"] = properties + ", " + table.group + ", " + table.unit
    spread = table.standard_deviation.map(" (sd {:.0f})".format, na_action="ignore").fillna("")
    table["cell"] = table["mean"].map("{:.0f}".format) + spread
    return across(table.drop_duplicates(["property", "task"]), ["property"], "task", "cell")


def difficulty() -> pd.DataFrame:
    """`layers_later` by what selects tokens."""
    later = layers_later().map("{:+z.2f}".format).reset_index()
    return later.rename(columns={"settled_from": "final prediction", "first_similar": "first similar state"})


def published_main_figure() -> pd.DataFrame:
    """MEE's main figure as shares of full depth, published and ours."""
    rows = stored("08_results/beside_published").query("batch == 32").drop(columns="batch")
    numbers = rows.select_dtypes("float").columns
    texts = {column: rows[column].map("{:.2f}".format, na_action="ignore") for column in numbers}
    shown = rows.assign(**texts, rule=rows.rule.map(label))
    return shown[[*KEYS, *(column for column in shown if column not in KEYS)]]


def published_pruning() -> pd.DataFrame:
    """The softmax results of "Not all FLOPs", row by row, beside ours on real text."""
    rows = stored("03_pruning/published_rows").query("data == 'real'")
    shares = {
        "published score": rows.score.map("{:.1f}".format),
        "published kept": (rows.score / rows.score_at_full_depth).map(PERCENT, na_action="ignore"),
        "published depth": rows.depth.map(PERCENT, na_action="ignore"),
        "kept here": (rows.our_score / rows.our_score_unpruned).map(PERCENT, na_action="ignore"),
        "depth here": rows.our_depth.map(PERCENT, na_action="ignore"),
    }
    # "full_depth" is the paper's name for an unpruned margin: its tokens exit
    names = rows.replace({"reduction": {"full_depth": "margin, no pruning"}})
    named = names[["model", "dataset", "reduction", "our_model", "our_task"]].map(label, na_action="ignore")
    return pd.concat([named, pd.DataFrame(shares), rows.why_they_differ], axis=1)


def scores_of_others() -> pd.DataFrame:
    """Published scores of models of about this size beside ours."""
    rows = stored("00_models/published_scores").drop(columns="data")
    numbers = rows.select_dtypes("float").columns
    return rows.assign(
        **{column: rows[column].map("{:.1f}".format, na_action="ignore") for column in numbers}
    )


def bug(name: str) -> pd.DataFrame:
    """The share of the full score that each task keeps with a published bug, and without."""
    rows = stored("measured/published_bugs").query("bug == @name")
    cells = with_range(rows, "retained", "low", "high", ".0%")
    versions = rows.version.replace({"published": "with the bug", "correct": "without"})
    shown = rows.assign(cell=cells, version=versions, model=rows.model.map(label), rule=rows.rule.map(label))
    return across(shown, ["data", "model", "rule", "batch", "version"], "task", "cell").fillna("")


def _verified() -> pd.DataFrame:
    """How fast drafts that the last layer verifies are, and full depth against itself, as texts."""
    rows = _bench("exits")
    rows = rows[rows.kind.isin(LOSSLESS)]
    planned = (rows.kind != COPIES) & rows.drafts.isna()
    rows["cell"] = with_range(rows, "speed", "low", "high").mask(planned, "no drafts")
    again = rows.drop_duplicates([*KEYS, "model", "batch"]).assign(kind="full depth, again")
    again["cell"] = with_range(again, *AGAIN)
    rows = pd.concat([again, rows])
    return rows.assign(model=rows.model.map(label), drafts=rows.kind.replace(DRAFTS))


def lossless() -> pd.DataFrame:
    """Tokens a second of drafts that the last layer verifies, one output at a time, full depth being 1."""
    rows = _verified().query("batch == 1 and data == 'real'")
    return across(rows, ["model", "drafts"], "task", "cell")


def lossless_in_batches() -> pd.DataFrame:
    """The same with the model that is trained for exits, by batch size."""
    rows = _verified().query("batch > 1 and data == 'real' and model == 'CALM'")
    return across(rows.assign(batch="batch " + rows.batch.astype(str)), ["task", "drafts"], "batch", "cell")


def kept_and_timed() -> pd.DataFrame:
    """Of each family the setting that was timed: FLOPs, and tokens a second by batch size."""
    rows = _bench("exits")
    rows = rows[~rows.kind.isin(LOSSLESS)]
    layer = "fixed layer " + rows.threshold.map("{:.0f}".format)
    rows["exits"] = rows.rule.map(label).where(rows.rule != "static", layer)
    rows["cell"] = with_range(rows, "speed", "low", "high")
    spent = stored("08_results/one_of_each_family").set_index([*KEYS, "kind"])[["flops_share", "whole_share"]]
    rows = rows.join(spent, on=[*KEYS, "kind"])
    rows["FLOPs, decoder"] = rows.flops_share.map(PERCENT, na_action="ignore")
    rows["FLOPs, end to end"] = rows.whole_share.map(PERCENT, na_action="ignore")
    return across(rows, [*KEYS, "exits", "FLOPs, decoder", "FLOPs, end to end"], "batch", "cell")


def simulated() -> pd.DataFrame:
    """The exits of the small models in decoders of other sizes, simulated, one output at a time."""
    rows = _bench("shapes").query("batch == 1")
    rows["exits"] = rows.kind.map(DRAFTS).fillna(rows.rule.map(label))
    layer = "fixed layer, after " + (100 * rows.depth).map("{:.0f} % of the depth".format)
    rows["exits"] = rows.exits.where(rows.kind != "fixed layer", layer)
    rows["cell"] = with_range(rows, "speed", "low", "high")
    again = rows.drop_duplicates([*KEYS, "shape"]).assign(exits="full depth, again")
    again["cell"] = with_range(again, *AGAIN)
    return across(pd.concat([again, rows]), [*KEYS, "exits"], "shape", "cell").fillna("")


def decoder_lines(group: str, folder: str = "") -> pd.DataFrame:
    """The lines of one group of `decoder.csv`, of the machine that timed most of them."""
    rows = pd.read_csv(BENCH / folder / "decoder.csv", keep_default_na=False)
    return one_machine(rows[rows.group == group])


def _after_shares(rows: pd.DataFrame) -> pd.Series:
    """What is timed, exit layers given as shares of the depth, so that shapes can be compared."""
    last = rows.what.str.extract("each fourth at ([0-9]+)")[0].astype(float)
    depth = last.groupby(rows["shape"]).transform("max")
    layer = rows.what.str.extract("(?:leave at layer|leave at) ([0-9]+)")[0].astype(float)
    share = (layer / depth).map(lambda depth: f"after {depth:.0%} of the layers")
    all_leave = rows.what.str.startswith("all tokens")
    named = ("all tokens leave " + share).where(all_leave, "leave " + share + ", each fourth at the end")
    return rows.what.mask(layer.notna(), named).replace({rule: label(rule) for rule in RULES})


def decoder(group: str) -> pd.DataFrame:
    """A group of `decoder.csv`: medians, a column for each shape, without what all lines have in common."""
    rows = decoder_lines(group)
    rows = rows.assign(what=_after_shares(rows))
    index = ["dtype", "batch", "what", "unit", "against"]
    differ = [name for name in index if rows[name].nunique() > 1]
    shown = rows.assign(cell=rows["median"].map("{:.2f}".format))
    return across(shown, differ, "shape", "cell").fillna("")


def full_depth() -> pd.DataFrame:
    """Milliseconds a step of each decoder, and how many times as fast ours is."""
    return _steps(decoder_lines("full depth"), "shape")


def on_gpu() -> pd.DataFrame:
    """Full depth at T5-large's shape on a GPU, beside the same on a CPU."""
    tables = {"CPU": decoder_lines("full depth"), "GPU": decoder_lines("full depth", GPU)}
    rows = pd.concat(table.assign(device=name) for name, table in tables.items())
    table = _steps(rows[rows["shape"] == "t5-large"], "device")
    return table[table.GPU != "not timed"]


def _steps(rows: pd.DataFrame, columns: str) -> pd.DataFrame:
    """Milliseconds a step, with how many times as fast ours is in brackets."""
    keys = [columns, "dtype", "batch"]
    steps = rows[rows.unit == "ms a step"].set_index([*keys, "what"])["median"]
    faster = rows[rows.unit != "ms a step"].set_index([*keys, "against"])["median"]
    faster.index.names = steps.index.names
    ratio = faster.reindex(steps.index).map(" ({:.2f})".format, na_action="ignore").fillna("")
    shown = (steps.map("{:.3g}".format) + ratio).rename("cell").reset_index()
    table = across(shown, ["dtype", "batch", "what"], columns, "cell").fillna("not timed")
    return table.rename(columns={"what": "decoder"})


def score_of_smollm2(name: str) -> float:
    """ROUGE-L of a model of profile `smollm2` at full depth, as it was measured once."""
    manifest = read_json(PACKAGE / "checkpoints" / "smollm2" / name / "manifest.json")
    return manifest["scores"]["summarization"]["rougeL"]


def smollm2() -> pd.DataFrame:
    """What training changes in SmolLM2: its score, and how early layers predict what the last one does."""
    folder = FIGURES / "smollm2"
    settled = pd.read_csv(folder / "01_monotonicity" / "figure_1_settled.csv")
    settled = settled.query("task == 'summarization'").set_index(["model", "layer"]).share.map(PERCENT)
    agrees = pd.read_csv(folder / "03_pruning" / "confidence_and_accuracy.csv")
    agrees = agrees.query("task == 'summarization'").set_index(["model", "layer"]).accuracy.map(PERCENT)
    rows = []
    for name, words in {
        "base": "as published",
        "vanilla": "last layer's loss",
        "calm": "CALM's loss",
    }.items():
        row = {"trained further with": words, "ROUGE-L": f"{score_of_smollm2(name):.1f}"}
        row |= {f"layer {layer} agrees with the last": agrees[name, layer] for layer in (8, 16, 24)}
        row |= {f"final after layer {layer}": settled[name, layer] for layer in (8, 16, 24)}
        rows.append(row)
    return pd.DataFrame(rows)


def beside_peers() -> pd.DataFrame:
    """How fast SmolLM2 with CALM's loss is decoded, `generate` of `transformers` being 1."""
    rows = pd.concat(causal_lines(MAIN_MODEL, dtype) for dtype in ("float32", "bfloat16"))
    layer = rows.exit_layer.map(" ({:.0f})".format, na_action="ignore").fillna("")
    planned = rows.way.isin(PLANNED_WAYS) & rows.acceptance.isna()
    cell = with_range(rows, "speed", "low", "high").mask(planned, "no drafts: as full depth")
    rows = rows.assign(way=rows.way + layer, cell=cell)
    table = across(rows, ["way", "decoder"], "dtype", "cell").fillna("not timed")
    table = table.rename(columns={dtype: f"`generate` = 1, {dtype}" for dtype in rows.dtype.unique()})
    single = rows[rows.dtype == "float32"].set_index(["way", "decoder"])
    at = pd.MultiIndex.from_frame(table[["way", "decoder"]])
    beside_ours = single.speed / single.speed["full depth", "ours"]
    table["our full depth = 1"] = beside_ours[at].map("{:.2f}".format).to_numpy()
    table["drafts accepted"] = single.acceptance[at].map(PERCENT, na_action="ignore").fillna("").to_numpy()
    table["ROUGE-L kept"] = single.kept[at].map(PERCENT).to_numpy()
    return table


def causal_lines(model: str, dtype: str) -> pd.DataFrame:
    """The lines of `causal.csv` of a model in a precision, verified ways first."""
    rows = one_machine(pd.read_csv(BENCH / "causal.csv"))
    rows = rows[(rows.model == model) & (rows.dtype == dtype)]
    ways = dict.fromkeys([*LOSSLESS_WAYS, *rows.way])
    ranks = rows.way.map({way: number for number, way in enumerate(ways)})
    decoders = rows.decoder.map({"ours": 0, "transformers": 1, "economize": 2})
    ranked = rows.assign(rank=ranks, by=decoders).sort_values(["rank", "exit_layer", "by"], kind="stable")
    return ranked.drop(columns=["rank", "by"])


def _bench(name: str) -> pd.DataFrame:
    """A table of the benchmark for readers, of the machine that timed most of each profile's lines."""
    rows = pd.read_csv(BENCH / f"{name}.csv")
    parts = [one_machine(rows[rows.profile == profile]).assign(data=data) for profile, data in DATA.items()]
    together = pd.concat(parts, ignore_index=True)
    return together.assign(task=together.task.map(label))
