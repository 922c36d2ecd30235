"""Why a row of the input is left out. ``rejected.parquet`` has one of these codes for every row that is."""

REASONS = {
    "invalid_json": "The row is not JSON: cut short, broken, nested too deeply, or longer than 256 MiB.",
    "invalid_text": "A text is not Unicode: bytes that are not UTF-8, or one half of a surrogate pair.",
    "unknown_shape": "The row is JSON, but none of the shapes that are read; the detail names the key that is wrong.",
    "empty": "There is nothing to learn from: no turns, no ids, or a turn without any content.",
    "no_assistant_turn": "Nobody answers: no turn is the assistant's.",
    "multimodal": "The row holds images, audio or video; only text is read.",
    "invalid_tool_call": "Tools or a call of one cannot be read as JSON, or lack a name.",
    "control_token_in_text": "A text holds a control token of the model written out, which would act as one.",
    "template_error": "The model's chat template refuses the conversation; the detail gives its words.",
    "mask_ambiguous": "What the assistant said cannot be told exactly in the rendered tokens, so it is not guessed.",
    "invalid_mask": "The loss_mask of a row with input_ids is not as long as they are, or holds other than 0 and 1.",
    "no_loss_tokens": "Fewer tokens with loss than conversations.min_loss_tokens.",
    "too_long": "More tokens than conversations.max_tokens.",
    "id_out_of_vocabulary": "A token id has no row in the model's embedding; the server would die of it.",
    "duplicate": "All tokens and masks are those of a row before, and conversations.duplicates is drop.",
}
"""Code → meaning, in the order of the checks."""


class Rejected(Exception):
    """This row cannot be used: ``reason`` is a key of REASONS, ``detail`` says what was found in this row."""

    def __init__(self, reason: str, detail: str) -> None:
        if reason not in REASONS:
            raise ValueError(f"bug: {reason} is no reason for rejecting a row")
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail
