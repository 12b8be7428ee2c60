"""How figures look: one colour, marker and dash for each model everywhere, safe for the colour-blind and in grey."""

from __future__ import annotations

import matplotlib

from .errors import CompanionError

ORDER = ("base", "vanilla", "calm", "free", "late_weighted")
LABELS = {
    "base": "base (pre-trained only)", "vanilla": "vanilla", "calm": "CALM", "free": "FREE", "late_weighted": "late-weighted",
    "question_answering": "question answering", "summarization": "summarization", "translation": "translation",
    "long_document_summarization": "long documents", "f1": "F1", "bleu": "BLEU", "rougeL": "ROUGE-L",
}  # fmt: skip
COLOURS = {"base": "#949494", "vanilla": "#0173b2", "calm": "#de8f05", "free": "#029e73", "late_weighted": "#cc78bc"}
MARKERS = {"base": "x", "vanilla": "o", "calm": "s", "free": "^", "late_weighted": "D"}
DASHES = {"base": (1, 1), "vanilla": (), "calm": (4, 1.5), "free": (1, 1), "late_weighted": (3, 1, 1, 1)}


def use_style() -> None:
    """Sets fonts, sizes and a fixed salt, once at the top of a notebook."""
    import seaborn

    seaborn.set_theme(context="notebook", style="whitegrid", font_scale=0.9)
    matplotlib.rcParams.update(
        {
            "figure.dpi": 100, "axes.titlesize": 11, "axes.labelsize": 10, "legend.fontsize": 9, "legend.frameon": False,
            "lines.markersize": 4.5, "svg.hashsalt": "mee", "pdf.fonttype": 42, "axes.grid": True, "grid.alpha": 0.5,
        }
    )  # fmt: skip


def label(name: str) -> str:
    """The reader's name of a model or task."""
    return LABELS.get(name, name.replace("_", " "))


def panels(count: int, columns: int | None = None, width: float = 3.4, height: float = 2.9, profile: str = "", **options):
    """A row (or grid) of panels with the profile's name in the corner. Returns figure and a flat list of axes."""
    import matplotlib.pyplot as plt

    if count < 1:
        raise CompanionError("There is nothing to draw: no panel was asked for.")
    columns = columns or count
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained", **options
    )
    for unused in axes.flat[count:]:
        unused.set_visible(False)
    if profile:
        figure.text(1.0, 1.01, f"profile: {profile}", ha="right", va="bottom", fontsize=8, color="#666666")
    return figure, list(axes.flat[:count])


def draw_curve(axis, table, column: str, model: str, band: tuple[str, str] | None = ("low", "high"), clip=None) -> None:
    """One curve over the blocks with its band; columns `layer`, `column` and the two of `band`."""
    style = {"color": COLOURS.get(model), "marker": MARKERS.get(model), "dashes": DASHES.get(model, ())}
    axis.plot(table["layer"], table[column], label=label(model), linewidth=1.6, **style)
    if band:
        low, high = table[band[0]], table[band[1]]
        if clip:
            low, high = low.clip(*clip), high.clip(*clip)
        axis.fill_between(table["layer"], low, high, color=COLOURS.get(model), alpha=0.18, linewidth=0)


def block_axis(axis, layers: int) -> None:
    """A horizontal axis in blocks, at whole numbers."""
    axis.set_xlim(0.6, layers + 0.4)
    axis.set_xticks(range(1, layers + 1) if layers <= 12 else range(2, layers + 1, max(2, layers // 12)))
    axis.set_xlabel("decoder block")


def shared_legend(figure, axis, columns: int = 5) -> None:
    """One legend for all panels, below them, where it covers nothing."""
    handles, labels = axis.get_legend_handles_labels()
    fitting = max(2, int(figure.get_figwidth() // 1.3))
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, fitting, len(labels)))


def depth_colours(figure, axes, layers: int) -> None:
    """A colour bar for curves that are coloured by block (palette viridis)."""
    scale = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(1, layers), "viridis")
    figure.colorbar(scale, ax=axes, label="decoder block", pad=0.01)


def score_bars(axis, scores) -> None:
    """Horizontal bars with intervals, models above floors; columns `system`, `kind`, `mean`, `low`, `high`."""
    colours = [COLOURS.get(system, "#cccccc") for system in scores["system"]]
    names = [label(system) if kind == "model" else f"floor: {system}" for system, kind in zip(scores["system"], scores["kind"])]
    errors = [scores["mean"] - scores["low"], scores["high"] - scores["mean"]]
    axis.barh(names, scores["mean"], xerr=[e.clip(lower=0) for e in errors], color=colours, error_kw={"linewidth": 1})
    axis.invert_yaxis()
    axis.set_xlim(0, max(5.0, float(scores["high"].max()) * 1.08))
    axis.grid(axis="y", visible=False)


def grouped_bars(axis, table, category: str, column: str, rotation: float = 0) -> None:
    """Bars with intervals, grouped by `category`, one colour a model; columns `model`, `low`, `high` besides."""
    categories, models = list(dict.fromkeys(table[category])), list(dict.fromkeys(table["model"]))
    width = 0.8 / len(models)
    for number, model in enumerate(models):
        rows = table[table["model"] == model].set_index(category).reindex(categories)
        places = [i + (number - (len(models) - 1) / 2) * width for i in range(len(categories))]
        errors = [(rows[column] - rows["low"]).clip(lower=0), (rows["high"] - rows[column]).clip(lower=0)]
        style = {"color": COLOURS.get(model), "label": label(model), "error_kw": {"linewidth": 0.8}}
        axis.bar(places, rows[column], width, yerr=errors, **style)
    axis.set_xticks(range(len(categories)), [c.replace("_", " ") for c in categories], rotation=rotation, fontsize=8)
    axis.grid(axis="x", visible=False)


def prediction_grid(axis, rows, layers: int) -> None:
    """The top tokens of every block as a grid: darker is more probable; columns `layer`, `rank`, `token`, `probability`."""
    top = int(rows["rank"].max())
    grid = rows.pivot(index="rank", columns="layer", values="probability").to_numpy(dtype=float)
    axis.imshow(grid, cmap="Blues", vmin=0, vmax=1, aspect="auto", extent=(0.5, layers + 0.5, top + 0.5, 0.5))
    for row in rows.itertuples():
        axis.text(
            row.layer, row.rank, f"{row.token}\n{row.probability:.2f}", ha="center", va="center", fontsize=7,
            color="white" if row.probability > 0.55 else "black",
        )  # fmt: skip
    axis.set(yticks=range(1, top + 1), ylabel="rank", xticks=range(1, layers + 1))
    axis.grid(visible=False)


def only_outer_labels(axes, columns: int) -> None:
    """Keeps axis labels at the left and lower edge of a grid of panels."""
    for number, axis in enumerate(axes):
        if number % columns:
            axis.set_ylabel("")
        if number + columns < len(axes):
            axis.set_xlabel("")


def confidence_and_accuracy(axis, rows, model: str) -> None:
    """Mean confidence (solid) and accuracy (dashed) over the blocks, each with its interval."""
    axis.plot(rows["layer"], rows["confidence"], color="#333333", linewidth=1.6, label="mean confidence")
    axis.plot(rows["layer"], rows["accuracy"], color=COLOURS.get(model), dashes=(4, 1.5), linewidth=1.6, label="accuracy (in the model's colour)")
    for name, colour in (("confidence", "#333333"), ("accuracy", COLOURS.get(model))):
        axis.fill_between(rows["layer"], rows[f"{name}_low"], rows[f"{name}_high"], color=colour, alpha=0.2, linewidth=0)


def reliability_lines(axis, rows) -> None:
    """Accuracy against confidence, a line a model, on the diagonal of perfect calibration."""
    axis.plot([0, 1], [0, 1], color="#999999", linewidth=1, dashes=(1, 1), label="perfectly calibrated")
    for model, part in rows.groupby("model", sort=False):
        style = {"color": COLOURS.get(model), "marker": MARKERS.get(model), "dashes": DASHES.get(model, ())}
        axis.plot(part["confidence"], part["accuracy"], label=label(model), linewidth=1.4, **style)
    axis.set(xlim=(0, 1), ylim=(0, 1.02))


def two_depths(axis, rows, column: str, model: str) -> None:
    """Share of prefixes by block: solid for the first similar state, dotted for the final prediction; columns `depth`, `layer`, `column`."""
    for depth, dashes, name in (("first_similar", (), "a state similar to the last"), ("settled_from", (1, 1), "the final prediction")):
        part = rows[rows["depth"] == depth]
        style = {"color": COLOURS.get(model), "dashes": dashes, "marker": "o" if not dashes else None, "markersize": 3.5}
        axis.plot(part["layer"], part[column], label=name, linewidth=1.6, **style)
        axis.fill_between(part["layer"], part["low"], part["high"], color=COLOURS.get(model), alpha=0.18, linewidth=0)


GROUPS = {"easy": ("#0173b2", ()), "difficult": ("#de8f05", (4, 1.5))}


def easy_and_difficult(axis, rows) -> None:
    """Mean similarity by block of easy and difficult prefixes with bands; columns `group`, `layer`, `similarity`, `low`, `high`."""
    for group, (colour, dashes) in GROUPS.items():
        part = rows[rows["group"] == group]
        axis.plot(part["layer"], part["similarity"], label=group, color=colour, dashes=dashes, linewidth=1.6)
        axis.fill_between(part["layer"], part["low"], part["high"], color=colour, alpha=0.18, linewidth=0)


def example_curves(axis, rows, threshold: float) -> None:
    """Similarity curves of single prefixes; columns `group`, `example`, `layer`, `similarity`; a line at the threshold."""
    for (group, number), part in rows.groupby(["group", "example"], sort=False):
        colour, dashes = GROUPS[group]
        axis.plot(part["layer"], part["similarity"], color=colour, dashes=dashes, linewidth=1.2, label=group if number == 1 else None)
    axis.axhline(threshold, color="#666666", linewidth=0.8, linestyle=":", label=f"threshold {threshold}")


# colour, marker, dashes and the reader's name of every exit rule
RULES = {
    "softmax_margin": ("#0173b2", "o", (), "softmax margin (CALM)"),
    "max_probability": ("#56b4e9", "P", (4, 1.5), "max probability (CALM's code)"),
    "hidden_similarity": ("#949494", "x", (1, 1), "hidden similarity (CALM)"),
    "rising_top1": ("#d55e00", "v", (3, 1, 1, 1), "rising top-1 (MEE)"),
    "linear": ("#56b4e9", "<", (1, 1), "linear (CALM)"),
    "hidden": ("#de8f05", "s", (), "hidden, one block (CALM)"),
    "wide_hidden": ("#ca9161", "h", (1, 1), "hidden, one block, three times as wide"),
    "two_hidden": ("#c7a76c", "2", (4, 1.5), "hidden, two blocks"),
    "three_hidden": ("#029e73", "^", (4, 1.5), "hidden, three blocks (MEE)"),
    "four_hidden": ("#7a7a00", "d", (4, 1.5), "hidden, four blocks"),
    "low_rank": ("#f781bf", "P", (1, 1), "low rank, one block (ours)"),
    "low_rank_three": ("#a63603", "*", (), "low rank, three blocks (ours)"),
    "narrow_lstm": ("#b5a300", "p", (1, 1), "LSTM, one layer (MEE's code)"),
    "lstm": ("#cc78bc", "D", (3, 1, 1, 1), "LSTM, two layers (MEE)"),
    "static": ("#000000", ".", (1, 1), "static"),
    "oracle": ("#000000", "*", (), "oracle"),
    "none": ("#000000", "+", (), "no exit"),
    "free_adaptive": ("#7a0177", "X", (), "adaptive threshold (FREE)"),
    "unpruned": ("#0173b2", "o", (), "margin, all ids"),
    "fixed": ("#de8f05", "s", (), "margin, fixed pruning"),
    "decaying": ("#029e73", "^", (4, 1.5), "margin, decaying pruning"),
    "decaying_closed": ("#949494", "v", (1, 1), "margin, decaying, closed form"),
    "adaptive": ("#cc78bc", "D", (3, 1, 1, 1), "margin, adaptive pruning"),
    "rising_fixed": ("#ca9161", "p", (1, 1), "rising top-1, fixed pruning"),
    "weighted": ("#d55e00", "v", (4, 1.5), "weighted contrast"),
    "jsd": ("#cc78bc", "D", (3, 1, 1, 1), "JSD contrast"),
    "weighted_fixed": ("#a63603", "*", (1, 1), "weighted contrast, fixed pruning"),
    "jsd_fixed": ("#7a0177", "h", (1, 1), "JSD contrast, fixed pruning"),
    "weighted_token": ("#fdae6b", "<", (4, 1.5), "weighted contrast, token too"),
    "jsd_token": ("#fbb4d9", ">", (3, 1, 1, 1), "JSD contrast, token too"),
}
LABELS |= {name: style[3] for name, style in RULES.items()}


# where rules of all kinds meet (06), colours are families: probabilities, pruned, contrast, one block, several blocks, neither
FAMILIES = RULES | {
    name: (colour, marker, dashes, RULES[name][3]) for name, colour, marker, dashes in (
        ("softmax_margin", "#0173b2", "o", ()), ("max_probability", "#0173b2", "P", (4, 1.5)),
        ("fixed", "#de8f05", "s", ()), ("decaying", "#de8f05", "^", (4, 1.5)),
        ("weighted_fixed", "#cc78bc", "h", ()), ("jsd_fixed", "#cc78bc", "D", (4, 1.5)),
        ("linear", "#56b4e9", "<", ()), ("hidden", "#56b4e9", "d", (4, 1.5)),
        ("rising_top1", "#029e73", "v", (1, 1)), ("low_rank_three", "#029e73", "*", ()), ("three_hidden", "#029e73", ">", (4, 1.5)),
        ("lstm", "#029e73", "p", (3, 1, 1, 1)),
    )
}  # fmt: skip


def rule_curves(axis, rows, x: str, y: str, band: tuple[str, str] | None = None, line: bool = True, styles: dict = RULES) -> None:
    """One curve a rule, in its style, sorted by `x`; columns `rule`, `x`, `y` and the two of `band`."""
    for rule, part in rows.groupby("rule", sort=False):
        colour, marker, dashes, name = styles[rule]
        part = part.sort_values(x, kind="stable")
        style = {"color": colour, "marker": marker, "markersize": 7 if rule in ("oracle", "none") else 4.5}
        if line and len(part) > 1:
            style |= {"dashes": dashes, "linewidth": 1.5}
        else:
            style |= {"linestyle": "none"}
        axis.plot(part[x], part[y], label=name, **style)
        if band:
            axis.fill_between(part[x], part[band[0]], part[band[1]], color=colour, alpha=0.15, linewidth=0)


def all_in_legend(figure, axes, columns: int = 4) -> None:
    """One legend below all panels with every label that occurs in any of them."""
    found = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels()):
            found.setdefault(name, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=min(columns, len(found)))


def rank_box(axis, rows, model: str) -> None:
    """Boxes over the blocks on a logarithmic axis; columns `layer`, `whisker_low`, `low`, `median`, `high`, `whisker_high`."""
    boxes = [
        {"med": row.median, "q1": row.low, "q3": row.high, "whislo": row.whisker_low, "whishi": row.whisker_high, "fliers": []}
        for row in rows.itertuples()
    ]
    colour = COLOURS.get(model)
    axis.bxp(
        boxes, positions=list(rows["layer"]), widths=0.65, showfliers=False, patch_artist=True, manage_ticks=False,
        boxprops={"facecolor": colour, "alpha": 0.45, "edgecolor": colour}, medianprops={"color": "black", "linewidth": 1.6},
        whiskerprops={"color": colour}, capprops={"color": colour},
    )  # fmt: skip
    axis.set_yscale("log")


def depth_curve(axis, rows, x: str, y: str, layer: int, layers: int) -> None:
    """One curve in the colour of its block (see `depth_colours`), with its band; columns `x`, `y`, `low`, `high`."""
    colour = matplotlib.colormaps["viridis"]((layer - 1) / max(1, layers - 1))
    axis.plot(rows[x], rows[y], color=colour, linewidth=1.5, marker="o", markersize=3, label=f"block {layer}")
    axis.fill_between(rows[x], rows["low"], rows["high"], color=colour, alpha=0.15, linewidth=0)


def plain_bars(axis, names, values) -> None:
    """Horizontal bars of one colour, the first on top, each with its value."""
    bars = axis.barh([str(name) for name in names], values, color="#0173b2")
    axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
    axis.set_xlim(0, 1.18 * max(values))
    axis.set_ylim(len(bars) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)


def three_distributions(axis, rows) -> None:
    """Probabilities of a few ids under expert, amateur and contrast; columns `token`, `expert`, `amateur`, `contrast`, `in_head`."""
    places = list(range(len(rows)))
    for number, (column, colour) in enumerate((("expert", "#0173b2"), ("amateur", "#bbbbbb"), ("contrast", "#d55e00"))):
        axis.bar([place + 0.27 * (number - 1) for place in places], rows[column], 0.26, color=colour, label=column)
    names = [token if inside else f"({token})" for token, inside in zip(rows["token"], rows["in_head"], strict=True)]
    axis.set_xticks(places, names, rotation=30, ha="right", fontsize=8)
    axis.set(yscale="log", ylim=(1e-6, 2.0), ylabel="probability")
    axis.grid(axis="x", visible=False)


def amateur_grid(axis, rows, layers: int):
    """Which earlier block is the amateur, as a grid; columns `layer`, `amateur_layer`, `share`. Returns the image, for a colour bar."""
    grid = rows.pivot(index="amateur_layer", columns="layer", values="share").to_numpy(dtype=float)
    image = axis.imshow(grid, cmap="viridis", vmin=0, vmax=1, aspect="auto", origin="lower", extent=(1.5, layers + 0.5, 0.5, layers - 0.5))
    axis.set(xlabel="expert block", ylabel="amateur block", xticks=range(2, layers + 1), yticks=range(1, layers))
    axis.grid(visible=False)
    return image


def nothing_to_draw(axis, why: str) -> None:
    """An empty panel that says why."""
    axis.set_axis_off()
    axis.text(0.5, 0.5, why, ha="center", va="center", transform=axis.transAxes, fontsize=10, color="#444444")


def rule_bars(axis, rows, column: str, band: tuple[str, str] | None = None, pale=None, styles: dict = RULES, whiskers: str | None = None) -> None:
    """Horizontal bars, one a rule; columns `rule`, `column` and the two of `band`. `pale`: which of them are drawn faintly, `[rows]`."""
    errors = None
    if band:
        errors = [(rows[column] - rows[band[0]]).clip(lower=0), (rows[band[1]] - rows[column]).clip(lower=0)]
    colours = [styles[rule][0] for rule in rows["rule"]]
    bars = axis.barh([label(rule) for rule in rows["rule"]], rows[column], xerr=errors, color=colours, error_kw={"linewidth": 1, **({"ecolor": whiskers} if whiskers else {})})
    for bar, faint in zip(bars, pale if pale is not None else []):
        bar.set_alpha(0.3 if faint else 1.0)
    axis.set_ylim(len(rows) - 0.4, -0.6)  # the first on top, in panels that share this axis too
    axis.grid(axis="y", visible=False)


def training_and_held_out(axis, rows) -> None:
    """Learning curves: dashed while training, solid held out, with bands; columns `epoch`, `loss`, `held_out_loss` and their bounds."""
    for column, dashes, name in (("loss", (4, 1.5), "training"), ("held_out_loss", (), "held out")):
        colour = {"loss": "#0173b2", "held_out_loss": "#de8f05"}[column]
        axis.plot(rows["epoch"], rows[column], dashes=dashes, color=colour, label=name, linewidth=1.6)
        axis.fill_between(rows["epoch"], rows[f"{column}_low"], rows[f"{column}_high"], color=colour, alpha=0.2, linewidth=0)
    axis.set(xlabel="epoch", ylabel="loss in nats", xticks=rows["epoch"])


def score_points(axis, rows, x: str) -> None:
    """Score against cost or speed: a curve a rule and the front of all as a grey line; columns `rule`, `x`, `score`, and `front` if it is to be drawn."""
    if "front" in rows:
        front = rows[rows["front"]].sort_values(x, kind="stable")
        axis.plot(front[x], front["score"], color="#bbbbbb", linewidth=5, alpha=0.6, zorder=0, label="front (oracle left out)")
    rule_curves(axis, rows, x, "score", styles=FAMILIES)
    full = rows[rows["rule"] == "none"]
    if len(full):
        axis.axhline(full["score"].iloc[0], color="#666666", linewidth=0.8, linestyle=":")
        axis.axvline(1.0, color="#666666", linewidth=0.8, linestyle=":")


def speed_points(axis, rows) -> None:
    """Score against speed with the range over rounds; columns `rule`, `speed`, `lowest`, `highest`, `score`."""
    for rule, part in rows.groupby("rule", sort=False):
        colour, marker, _, name = FAMILIES[rule]
        errors = [(part["speed"] - part["lowest"]).clip(lower=0), (part["highest"] - part["speed"]).clip(lower=0)]
        axis.errorbar(part["speed"], part["score"], xerr=errors, fmt=marker, color=colour, label=name, elinewidth=0.8, markersize=5)
    axis.axvline(1.0, color="#666666", linewidth=0.8, linestyle=":")


def violation_dots(axis, rows, eps: float) -> None:
    """Violation rates by delta, one dot a rule side by side, and a line at eps; columns `rule`, `delta`, `violated`."""
    deltas, rules = sorted(rows["delta"].unique()), list(dict.fromkeys(rows["rule"]))
    for number, rule in enumerate(rules):
        part, (colour, marker, _, name) = rows[rows["rule"] == rule], FAMILIES[rule]
        places = part["delta"].map(deltas.index) + 0.7 * (number / max(1, len(rules) - 1) - 0.5)
        axis.plot(places, part["violated"], marker=marker, color=colour, linestyle="none", markersize=4.5, label=name)
    axis.axhline(eps, color="#d55e00", linewidth=1.2, label="eps, what may fail")
    axis.set_xticks(range(len(deltas)), [f"{delta:g}" for delta in deltas])
    axis.set(xlabel="delta, the largest mean loss", xlim=(-0.5, len(deltas) - 0.5))
    axis.grid(axis="x", visible=False)


def before_and_after(axis, rows, column: str) -> None:
    """A fault switched on: an open circle without it, a filled one with it; columns `name`, `version`, `column`."""
    names = list(dict.fromkeys(rows["name"]))
    for place, name in enumerate(names):
        part = rows[rows["name"] == name].set_index("version")[column]
        axis.plot([part["correct"], part["faulty"]], [place, place], color="#999999", linewidth=1.2, zorder=1)
    for version, face in (("correct", "white"), ("faulty", "#d55e00")):
        part = rows[rows["version"] == version]
        axis.scatter(part[column], [names.index(name) for name in part["name"]], s=34, facecolor=face, edgecolor="#d55e00", zorder=2, label=version)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def two_speeds(axis, rows) -> None:
    """Tokens a second with its range over rounds, and samples a second; columns `name`, `speed`, `lowest`, `highest`, `samples_speed`."""
    places = list(range(len(rows)))
    errors = [(rows["speed"] - rows["lowest"]).clip(lower=0), (rows["highest"] - rows["speed"]).clip(lower=0)]
    axis.errorbar(rows["speed"], places, xerr=errors, fmt="o", color="#0173b2", elinewidth=1, markersize=4.5, label="tokens a second (range over rounds)")
    axis.plot(rows["samples_speed"], places, marker="x", color="#d55e00", linestyle="none", label="samples a second")
    axis.axvline(1.0, color="#666666", linewidth=0.8, linestyle=":")
    axis.set_yticks(places, rows["name"], fontsize=7)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
