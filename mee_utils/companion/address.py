"""Where this repository is published: what its publisher sets in `[project.urls]` of pyproject.toml."""

import tomllib

from ..common.files import ROOT

HOST = "https://github.com/"


def repository(settings: str | None = None) -> str:
    """The address, empty until a publisher has set it. `settings`: the text of pyproject.toml, else ours."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8") if settings is None else settings
    return tomllib.loads(text)["project"].get("urls", {}).get("Repository", "").rstrip("/")


def places(address: str) -> dict[str, str]:
    """What else a repository on GitHub has an address for: its pages and its Binder, by what links say."""
    if not address.startswith(HOST):
        return {}
    owner, name = address.removeprefix(HOST).split("/")
    return {
        "site": f"https://{owner.lower()}.github.io/{name}/",
        "run it on Binder": f"https://mybinder.org/v2/gh/{owner}/{name}/HEAD?urlpath=lab",
    }
