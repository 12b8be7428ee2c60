"""The explorer (`make explorer`): models of real text on sentences of our own; no corpus may be shown."""

from pathlib import Path

from ..analysis.explorer import Explorer, explore
from .catalogue import RULES
from .inputs import load_profile_model
from .profiles import load_profile
from .results import build_root

MODELS = ("calm", "vanilla")
EXPLORED = ("softmax_margin", "hidden_similarity", "rising_top1")
MAX_NEW_TOKENS = 40
SENTENCES = {
    "translation": [
        "translate English to French: Two men are repairing the roof of an old house.",
        "translate English to French: A little girl in a red dress is playing on the beach.",
        "translate English to French: A brown dog jumps over a fence while its owner watches.",
    ],
    "question answering": [
        "question: In which city? context: will it rain in Madrid tomorrow afternoon",
        "question: Which restaurant type? context: book a table at a pizza place in Lyon for four people",
        "question: Which artist? context: add a song by Nina Simone to my evening playlist",
    ],
    "summarization": [
        "summarize: #Person1#: My phone does not charge any more. #Person2#: Have you tried another cable? "
        "#Person1#: Yes, three of them. #Person2#: Then the battery is broken.",
        "summarize: #Person1#: Did you book the train to Rome? #Person2#: Yes, it leaves at nine. "
        "#Person1#: Good. I will bring breakfast. #Person2#: Please bring coffee, too.",
    ],
}


def write() -> Path:
    """Writes `explorer.html` into the site, if that has been made, else into `build`."""
    profile = load_profile("real")
    policies = {RULES[rule].label: RULES[rule].policy(0.9, {"min_layer": 1}, {}) for rule in EXPLORED}
    runs = []
    for name in MODELS:
        model = load_profile_model(profile, name)
        runs += explore(model, SENTENCES, policies, max_new_tokens=MAX_NEW_TOKENS).runs
    site = build_root() / "site"
    folder = site if site.is_dir() else build_root()
    return Explorer(runs).save(folder / "explorer.html")
