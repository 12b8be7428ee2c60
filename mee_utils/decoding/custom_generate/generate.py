"""What `transformers` runs for `custom_generate="mee_utils/decoding"` (with `trust_remote_code=True`)."""

from mee_utils.common.errors import MeeError
from mee_utils.decoding.from_transformers import decode_with_exits


def generate(model, exit_policy=None, **arguments):
    """`model.generate` with early exits; see `decode_with_exits`.

    Raises `MeeError` for arguments that belong to another way of decoding.
    """
    for name in ("streamer", "assistant_model"):
        if arguments.get(name) is not None:
            raise MeeError(f"Exits decode without a {name}: leave it out of generate.")
    return model.generate(custom_generate=decode_with_exits, exit_policy=exit_policy, **arguments)
