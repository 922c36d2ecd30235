"""float8 as speculators stores it: e4m3 with one float32 scale for each token, over all its slots."""

import torch

LARGEST = torch.finfo(torch.float8_e4m3fn).max
SMALLEST_SCALE = 1e-12


def quantised(slots: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """``slots``, each float [num_rows, hidden_size], as float8_e4m3fn [num_rows, num_slots, hidden_size], and the
    scales, float32 [num_rows].

    Bit for bit what ``quantize_tensor_to_fp8`` of speculators' hs_connectors makes of the stacked slots. Each slot is
    divided by itself, so no more than one of them is in memory as float32; nothing waits for the device. A value that
    is not finite makes its scale so, and with it the whole row or its infinite values NaN.
    """
    largest = torch.stack([slot.abs().amax(1) for slot in slots]).amax(0).float()
    scales = (largest / LARGEST).clamp(min=SMALLEST_SCALE)
    num_rows, hidden_size = slots[0].shape
    rows = torch.empty(num_rows, len(slots), hidden_size, dtype=torch.float8_e4m3fn, device=slots[0].device)
    for index, slot in enumerate(slots):
        rows[:, index] = slot / scales[:, None]
    return rows, scales
