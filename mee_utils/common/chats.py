"""Prompts for models that were tuned on chats."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import MeeError


def in_template(tokenizer, texts: Sequence[str], system: str | None = None) -> list[str]:
    """Each text as a user's message in the tokenizer's chat template, behind which the answer begins.

    `system` is what the system says before; by default what the template says. Raises `MeeError` for a
    tokenizer without a template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise MeeError("The tokenizer has no chat template: give prompts as they are.")
    before = [] if system is None else [{"role": "system", "content": system}]
    # what the tokenizer puts before every text is not put there twice
    first = tokenizer.bos_token or ""
    adds_first = bool(first) and tokenizer("a").input_ids[0] == tokenizer.bos_token_id
    prompts = []
    for text in texts:
        messages = [*before, {"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompts.append(prompt.removeprefix(first) if adds_first else prompt)
    return prompts
