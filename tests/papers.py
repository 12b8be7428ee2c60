"""A clone of the repository in which a profile of the papers runs on a tiny checkpoint."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import torch
import yaml

ROOT = Path(__file__).parent.parent
NAMES = ("Ann", "Bob", "Carl", "Dora", "Emil")
PLACES = ("Rome", "Oslo", "Lyon")
THINGS = {"key": "clé", "book": "livre", "hat": "chapeau"}
SPLITS = {"train": range(0, 45), "validation": range(45, 53), "test": range(53, 61)}


def rows(task, number):
    """One example in the columns of SQuAD, CNN/DailyMail or WMT15."""
    name = NAMES[number % 5]
    place = PLACES[number % 3]
    thing, chose = sorted(THINGS.items())[number // 5 % 3]
    story = f"{name} lives in {place}. {name} has {number} things, and one is a {thing}. It rains."
    if task == "question_answering":
        answers = {"text": [place, f"in {place}"], "answer_start": [story.index(place)] * 2}
        return {
            "id": str(number),
            "title": name,
            "context": story,
            "question": f"Where does {name} live?",
            "answers": answers,
        }
    if task == "summarization":
        return {"article": story, "highlights": f"{name} is in {place} .", "id": str(number)}
    return {
        "translation": {"en": f"{name} has a {thing} in {place}.", "fr": f"{name} a un {chose} à {place}."}
    }


def write_corpora(folder):
    """SQuAD and WMT15 as jsonl, CNN/DailyMail as parquet shards, one long document; task -> folder."""
    (folder / "long").mkdir(parents=True)
    document = {
        "document": " ".join(rows("summarization", number)["article"] for number in range(8)),
        "summary": "It rains.",
    }
    (folder / "long" / "validation.jsonl").write_text(json.dumps(document) + "\n")
    folders = {task: folder / task for task in ("question_answering", "summarization", "translation")}
    for task, place in folders.items():
        inside = place / "data" if task == "translation" else place
        inside.mkdir(parents=True)
        for split, numbers in SPLITS.items():
            found = [rows(task, number) for number in numbers]
            if task == "summarization":
                for shard in range(2):
                    pd.DataFrame(found[shard::2]).to_parquet(inside / f"{split}-0000{shard}-of-00002.parquet")
            else:
                (inside / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return folders


def train_tokenizer():
    """A tokenizer for these sentences."""
    from mee_utils.companion.training.mini import train_tokenizer

    def texts(value):
        return (
            [value]
            if isinstance(value, str)
            else [
                text
                for part in (value.values() if isinstance(value, dict) else value)
                for text in texts(part)
            ]
        )

    every = [
        rows(task, number)
        for task in ("question_answering", "summarization", "translation")
        for number in range(61)
    ]
    for row in every:
        row.get("answers", {}).pop("answer_start", None)
    return train_tokenizer(texts(every), 600)


def write_checkpoint(folder, tokenizer, seed=0, steps=0):
    """A T5 with the papers' twelve layers and almost no width: random, or after a few steps on the
    translations, so that it scores more than 0.

    As in T5 itself, the vocabulary is larger than the tokenizer's.
    """
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=640,
        d_model=32,
        d_kv=8,
        num_heads=4,
        d_ff=32,
        num_layers=2,
        num_decoder_layers=12,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
        dropout_rate=0.0,
    )
    network = T5ForConditionalGeneration(config)
    pairs = [rows("translation", number)["translation"] for number in SPLITS["train"]]
    batch = tokenizer(
        [f"translate English to French: {pair['en']}" for pair in pairs], padding=True, return_tensors="pt"
    )
    labels = tokenizer([pair["fr"] for pair in pairs], padding=True, return_tensors="pt").input_ids
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(steps):
        network(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            labels=labels.masked_fill(labels == 0, -100),
        ).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.set_num_threads(threads)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Clone:
    """A copy of package and notebooks, without any checkpoint, and the commands typed in it."""

    def __init__(self, folder):
        self.root = folder / "clone"
        if not self.root.exists():
            self._copy()
        self.profiles = self.root / "notebooks" / "profiles"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {
            "PYTHONPATH": str(self.root),
            "MEE_OUTPUT": str(folder / "figures"),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "MPLBACKEND": "agg",
        }

    def _copy(self):
        shutil.copytree(
            ROOT / "mee_utils",
            self.root / "mee_utils",
            ignore=shutil.ignore_patterns("checkpoints", "__pycache__"),
        )
        shutil.copytree(
            ROOT / "notebooks", self.root / "notebooks", ignore=shutil.ignore_patterns("*.ipynb", ".*")
        )
        self.replace("companion/results.py", "dpi=150", "dpi=30")  # drawing would take longer than computing

    def replace(self, module, old, new):
        """Changes one place of a module in this clone."""
        path = self.root / "mee_utils" / module
        assert path.read_text().count(old) == 1
        path.write_text(path.read_text().replace(old, new))

    def edit(self, change, name="paper"):
        """Changes a profile's YAML in this clone."""
        content = self.read(name)
        change(content)
        self.write(name, content)

    def read(self, name):
        """A profile's YAML in this clone."""
        return yaml.safe_load((self.profiles / f"{name}.yaml").read_text())

    def write(self, name, content):
        """Puts another profile in its place."""
        (self.profiles / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def run(self, *arguments, **environment):
        """`python -m mee_utils ...` in the clone."""
        return self.python("-m", "mee_utils", *arguments, **environment)

    def python(self, *arguments, **environment):
        """Python in the clone."""
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=self.root,
            env=self.environment | environment,
            check=False,
        )

    def files(self):
        """Everything in the clone that a command may have written."""
        skipped = ("__pycache__", ".snakemake")
        return {
            str(p.relative_to(self.root))
            for p in self.root.rglob("*")
            if p.is_file() and not set(p.parts) & set(skipped)
        }


def shrink(content, checkpoint, corpora):
    """The profile `paper` with local files in place of every hub id, and a few steps of training."""
    for task, corpus in content["corpora"].items():
        for key in ("folder", "revision"):
            corpus.pop(key, None)
        corpus.update(source=str(corpora[task]), train=30, held_out=6, choices=5)
    training = content["training"]
    training.update(base={"checkpoint": str(checkpoint)}, max_source=48, max_target=12, tokens_per_batch=1500)
    training["backbones"]["vanilla"] = {"checkpoint": str(checkpoint)}  # ready, as in the profile for SAMSum
    for backbone in training["backbones"].values():
        if "examples" in backbone:
            backbone["examples"] = dict.fromkeys(corpora, 15)
    content["classifiers"] = {"tokens": 40, "seeds": 2, "epochs": 1}
    content["results"] = {
        "examples": 6,
        "validation": 5,
        "test": 5,
        "candidates": 3,
        "other_candidates": 3,
        "bug_examples": 4,
        "max_new_tokens": 8,
        "batch_size": 4,
        "top_k": 16,
        "first_k": 32,
        "least_k": 4,
    }
    for parameters in content["notebooks"].values():
        parameters["limit"] = 5
        if "max_new_tokens" in parameters:
            parameters["max_new_tokens"] = 10
    content["notebooks"]["02_saturation"]["frequency_limit"] = 20
    content["notebooks"]["04_contrastive_decoding"].update(expert_layer=6, long_corpus="long", long_limit=1)
