"""Small random models of every family, and a tokenizer trained on synthetic text; no network."""

import itertools
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["MEE_DATA"] = os.devnull  # what `make data` fetched here changes no test

import pytest
import torch
from reference import greedy

from mee_utils.companion.training.mini import train_tokenizer
from mee_utils.models.loading import Model
from mee_utils.tasks import load_task

INPUTS = [
    "question: Where does Ann live? context: Ann lives in Rome. Bob is a baker.",
    "translate English to French: The red house is near the river.",
    "summarize: On Friday there was a meeting.",
    "four",
    "translate English to French: Bob.",
    "question: Who owns more keys, Ann or Bob? context: Ann owns two keys. Bob owns three keys. "
    "Carl likes soup.",
    "the river and the bridge",
]
LENGTH = 9
SAFE = 1  # min_exit_layer of the random models: a policy that names no layer decides from the first on
FAMILIES = ("t5", "t5-v1.1", "mt5", "longt5", "t5-deep-decoder")
# The other two differ from these in the feed-forward layer, the LM head and its scale alone: they decode at
# full depth and with forced exits, and are not put through every policy.
EXIT_FAMILIES = ("t5", "longt5", "t5-deep-decoder")


if os.environ.get("PYTEST_XDIST_WORKER"):
    torch.set_num_threads(1)


# Files that take half a minute or more: they begin early, so that no process waits for another at the end.
LONG_FILES = ("test_notebook_runner", "test_measure", "test_hub", "test_synthetic_data")


@pytest.hookimpl(tryfirst=True)  # before xdist puts groups into the names of tests
def pytest_collection_modifyitems(items):
    """Which process runs what, and in which order.

    Groups that tests name begin: notebooks take longest. Any other file is a group, so that what its tests
    share is made in one process.
    """

    def turn(item):
        if item.get_closest_marker("xdist_group"):
            return 0
        return 1 if item.path.stem in LONG_FILES else 2

    items.sort(key=turn)
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def synthetic_tasks():
    return {
        name: load_task(name, limit=40) for name in ("question_answering", "summarization", "translation")
    }


@pytest.fixture(scope="session")
def tokenizer(synthetic_tasks):
    texts = itertools.chain.from_iterable((*task.inputs, *task.targets) for task in synthetic_tasks.values())
    return train_tokenizer(texts, 600)


def build_network(family: str, vocabulary: int, seed: int = 0, layers: int = 4):
    """A random network of a family, wide enough for states to differ between layers."""
    import transformers

    torch.manual_seed(seed)
    sizes = {
        "vocab_size": vocabulary,
        "d_model": 32,
        "d_kv": 8,
        "num_heads": 4,
        "d_ff": 64,
        "num_layers": 3,
        "num_decoder_layers": layers,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "dropout_rate": 0.0,
    }
    if family == "t5":
        network = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes | {"num_layers": 4}))
    elif family == "t5-v1.1":
        gated = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_layers": 4}
        network = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes | gated))
    elif family == "mt5":
        network = transformers.MT5ForConditionalGeneration(
            transformers.MT5Config(**sizes | {"num_layers": 4})
        )
    elif family == "longt5":
        long = {
            "num_layers": 4,
            "encoder_attention_type": "transient-global",
            "local_radius": 8,
            "global_block_size": 4,
        }
        network = transformers.LongT5ForConditionalGeneration(transformers.LongT5Config(**sizes | long))
    else:
        network = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    return network.eval()


@pytest.fixture(scope="session", params=FAMILIES)
def model(request, tokenizer):
    """One random model of each family, in double precision."""
    return Model(build_network(request.param, len(tokenizer)).double(), tokenizer, request.param, SAFE)


@pytest.fixture(scope="session")
def t5(tokenizer):
    return Model(build_network("t5", len(tokenizer)).double(), tokenizer, "t5", SAFE)


@pytest.fixture(scope="session", params=EXIT_FAMILIES)
def lively(request, tokenizer):
    """A random model whose output varies from token to token, and ends now and then."""
    return build_lively(request.param, tokenizer)


@pytest.fixture(scope="session", params=FAMILIES)
def every_family(request, tokenizer):
    """The same of every family."""
    return build_lively(request.param, tokenizer)


def build_lively(family, tokenizer, seed=0, dtype=torch.float64, layers=4):
    """Decoder weights three times as large as drawn, unequal norms; outputs end at different places."""
    network = build_network(family, len(tokenizer), seed, layers).to(dtype)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.startswith("decoder") and ("DenseReluDense" in name or "Attention" in name):
                weight.mul_(3)
            if "layer_norm" in name:
                weight.uniform_(0.6, 1.4)
    model = Model(network, tokenizer, family, SAFE)
    end_with(network, None)
    outputs = greedy(model, INPUTS, max_new_tokens=LENGTH)

    def variety(end):
        lengths = [output.index(end) + 1 if end in output else LENGTH for output in outputs]
        return len(set(lengths)), sum(lengths)

    end_with(network, max(sorted({token for output in outputs for token in output} - {0}), key=variety))
    return model


def end_with(network, ids):
    """Sets the id or ids that end an output; None: all outputs are as long as they may be."""
    network.config.eos_token_id = network.generation_config.eos_token_id = ids


def confidences(found, policy, model=None):
    """What a policy reads of a trace, `[token, decision]`."""
    from mee_utils.traces.replay import replay_policy

    return replay_policy(found, policy, model).confidences
