"""DATA.md and the model cards: templates (`pages/data.md`, `pages/model_card.md`) over what is stored."""

from pathlib import Path

import pandas as pd

from ...common.files import PACKAGE, read_json, read_yaml
from ...tasks.kinds import TASKS
from ...tasks.publishers.origins import load_origins
from ..figures import label
from ..profiles import Profile, load_profile
from .report_tables import DATA, FIGURES
from .templates import filled, markdown

OBJECTIVES = {
    "pretrained": "span corruption alone",
    "base": "span corruption and all tasks; the other models start here",
    "vanilla": "the last layer's loss",
    "calm": "every layer's loss, later layers weighing more (CALM)",
    "free": "the last layer and one exit layer, with distillation (FREE)",
    "late_weighted": "every layer's loss, the last 70 % of layers weighing most",
}
LIMITS = {
    "small": """
- They know only the synthetic language of `mee_utils/tasks/synthetic`: no real text.
- They answer nearly everything there, so exits look better than on real text.
- They cannot join, count or compare facts within a single token (notebook 00).""",
    "real": """
- Far below published systems: compare them with each other, not with the literature (notebook 00).
- English, plus French as a target language, and only in the domains of these corpora.
- Summaries may state what nobody said.
- Not for any decision about people. The models may reproduce training texts verbatim.""",
}
OF_REAL = "[non-commercial research](../../../LICENSES/LicenseRef-Weights-Real.txt)"
LICENCES = {
    "small": "[MIT](../../../LICENSE): the data are synthetic",
    "real": f"{OF_REAL}, because of the licences of the data",
}


def pages() -> dict[str, str]:
    """The text of every page, by its path in the repository."""
    cards = {f"mee_utils/checkpoints/{name}/README.md": model_card(load_profile(name)) for name in DATA}
    return {"DATA.md": data_page()} | cards


def data_page() -> str:
    """The corpora: origin, licence, rows."""
    origins = load_origins()
    corpora = [
        {
            "folder": f"[`{origin.name}`]({origin.page})",
            "what": origin.title,
            "licence, as its publisher states it": origin.licence,
            "download": f"{origin.size / 1e6:.1f} MB",
        }
        for origin in origins.values()
    ]
    splits = [
        {"folder": name, "split": split, "rows": f"{facts.rows:,}"}
        for name, origin in origins.items()
        for split, facts in origin.splits.items()
    ]
    return filled(
        "data",
        total=f"{sum(origin.size for origin in origins.values()) / 1e6:.0f} MB",
        corpora=markdown(pd.DataFrame(corpora)),
        citations="; ".join(f"{origin.cite} ({name})" for name, origin in origins.items()),
        splits=markdown(pd.DataFrame(splits)),
        left_out=len(read_yaml("tasks/publishers/snips.yaml")["left_out"]),
    )


def model_card(profile: Profile) -> str:
    """What the shipped models of a profile are, what they were trained on, and what they can do."""
    checkpoints = PACKAGE / "checkpoints" / profile.name
    manifests = {name: read_json(checkpoints / name / "manifest.json") for name in profile.training.models}
    models = [
        {
            "model": f"`{name}`",
            "objective": OBJECTIVES[name],
            "steps": f"{manifest['steps']:,}",
            "minutes": f"{manifest['minutes']:.0f}",
            "minimum exit layer": str(manifest["min_exit_layer"]),
        }
        for name, manifest in manifests.items()
    ]
    main = manifests["calm"]
    folder = "notebooks" if profile.name == "small" else f"figures/{profile.name}"
    weights = checkpoints / "calm" / "model.safetensors"
    return filled(
        "model_card",
        profile=profile.name,
        layers=main["shape"]["num_layers"],
        decoder_layers=main["shape"]["num_decoder_layers"],
        parameters=f"{main['parameters']:,}",
        size=f"{weights.stat().st_size / 1e6:.1f}",
        licence=LICENCES[profile.name],
        data=_data_of(profile, manifests),
        minutes=round(sum(manifest["minutes"] for manifest in manifests.values())),
        cores=main["machine"]["cores"],
        processor=main["machine"]["processor"],
        models=markdown(pd.DataFrame(models)),
        notebook=f"{folder}/00_models.ipynb",
        scores=markdown(_scores(profile)),
        limits=LIMITS[profile.name].strip(),
    )


def _data_of(profile: Profile, manifests: dict[str, dict]) -> str:
    """By task, the corpora that any of the models was trained on, with the number of different examples."""
    tasks: dict[str, dict[str, str]] = {}  # task -> name in the profile -> its source and size
    for manifest in manifests.values():
        for name, facts in manifest["data"].items():
            task = profile.extra[name].task if name in profile.extra else name
            source = "synthetic" if facts["source"] == "synthetic" else Path(facts["source"]).name
            tasks.setdefault(task, {})[name] = f"{source}, {facts['examples']:,} examples"
    return "; ".join(f"{label(task)}: {', and '.join(corpora.values())}" for task, corpora in tasks.items())


def _with_interval(row: pd.Series) -> str:
    """A score and its interval; BLEU of a corpus has none, so that of the mean over sentences follows."""
    interval = f"{row['mean']:.1f} ({row.low:.1f} to {row.high:.1f})"
    is_mean = abs(row.corpus_score - row["mean"]) < 1e-3
    return interval if is_mean else f"{row.corpus_score:.1f}; per sentence {interval}"


def _scores(profile: Profile) -> pd.DataFrame:
    """One row per model, and one for each baseline that needs no model; a column for each task."""
    scores = pd.read_csv(FIGURES / profile.name / "00_models" / "scores.csv")
    metric = scores.task.map({name: kind.metric for name, kind in TASKS.items()})
    rows = []
    for (task, system), row in scores[scores.metric == metric].set_index(["task", "system"]).iterrows():
        rows.append({"system": label(system), f"{label(task)}, {label(row.metric)}": _with_interval(row)})
    return pd.DataFrame(rows).groupby("system", sort=False).first().fillna("").reset_index()
