"""Storage as float8: the bytes are speculators' own, and what is not finite is found."""

import numpy
import pytest
import torch
from helpers.forwards import Forwards, expected_states
from hidden_states.capture.buffers import BufferPool
from hidden_states.capture.float8 import quantised
from hidden_states.capture.state_writer import StateFileWriter
from hidden_states.store.checksums import StateFileError, check_state_file
from hs_connectors.fp8_utils import dequantize_fp8_tensor, quantize_tensor_to_fp8
from safetensors.torch import load_file


def states(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """[rows, slots, hidden_size] of sizes from 1e-12 to 1e6 by row, and slots a thousand times apart."""
    random = torch.Generator().manual_seed(1)
    sizes = torch.logspace(-12, 6, 200)[:, None, None] * torch.tensor([1.0, 0.001, 30])[:, None]
    return (torch.randn(200, 3, 64, generator=random) * sizes).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_bit_for_bit_what_speculators_makes_of_the_same_states(dtype: torch.dtype) -> None:
    rows = states(dtype)
    rows[5], rows[6, 0], rows[7, 1, 3], rows[8, 2, 9], rows[9, 0, 0] = 0, 0, torch.nan, torch.inf, -torch.inf
    found, scales = quantised(list(rows.unbind(1)))
    wanted, wanted_scales = quantize_tensor_to_fp8(rows)
    # There are two NaN, and no telling which.
    bits = [torch.where(values.float().isnan(), 0x7F, values.view(torch.uint8)) for values in (found, wanted)]
    assert torch.equal(*bits) and (bits[0] == 0x7F).any((1, 2)).sum() == 3
    assert wanted_scales.shape == (200, 1, 1) and scales.dtype == wanted_scales.dtype == torch.float32
    assert torch.equal(scales.nan_to_num(-1), wanted_scales.view(-1).nan_to_num(-1))


def test_no_value_is_beyond_the_largest_and_each_rows_largest_is_kept() -> None:
    rows = states()
    found, scales = quantised(list(rows.unbind(1)))
    largest = found.float().abs().amax((1, 2))
    assert torch.equal(largest[20:], torch.full((180,), 448.0)) and largest.max() == 448
    assert torch.allclose(largest * scales, rows.float().abs().amax((1, 2)), rtol=1e-6)


@pytest.fixture
def float8(make_forwards) -> Forwards:
    return make_forwards(storage="float8")


def test_rows_and_scales_of_several_requests_and_forwards_come_together(float8: Forwards) -> None:
    rows_in_buffer = float8.recorder._sink.pool.num_rows
    assert rows_in_buffer < 300
    long, short = float8.request("hs-long", 1000), float8.request("hs-short", 3)
    float8.run((short, 0, 3), (long, 0, 300))
    float8.run((long, 300, 700))
    for rid, num_tokens in (("hs-long", 1000), ("hs-short", 3)):
        path = float8.wait_for(f"{rid}.safetensors")
        header = check_state_file(path, None).header
        assert header.dtype == "F8_E4M3" and path.stat().st_size == 1024 + num_tokens * (3 * 4 + 4 + 8)
        content = load_file(path)
        assert content["hidden_states_scales"].shape == (num_tokens, 1, 1)
        wanted, scales = quantize_tensor_to_fp8(expected_states(num_tokens))
        assert torch.equal(content["hidden_states"].view(torch.uint8), wanted.view(torch.uint8))
        assert torch.equal(content["hidden_states_scales"], scales)
        assert content["token_ids"].tolist() == list(range(num_tokens))
        restored = dequantize_fp8_tensor(content["hidden_states"], content["hidden_states_scales"]).float()
        assert ((restored / expected_states(num_tokens) - 1).abs() < 2**-4 + 2**-7).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_found_though_float8_has_no_infinity(float8: Forwards, value: float) -> None:
    make = float8._states

    def planted(slot: int, positions: torch.Tensor) -> torch.Tensor:
        made = make(slot, positions)
        if slot == 1:
            made[2, 1] = value
        return made

    float8._states = planted
    float8.run((float8.request("hs-a", 4), 0, 4))
    with pytest.raises(StateFileError, match="not_finite: row 2 ") as caught:
        check_state_file(float8.wait_for("hs-a.safetensors"), None)
    assert caught.value.reason == "not_finite"


def test_a_slot_too_small_beside_the_others_is_refused_and_not_stored_as_zeros(float8: Forwards) -> None:
    make = float8._states
    float8._states = lambda slot, positions: make(slot, positions) * (1e-6 if slot == 0 else 1)
    float8.run((float8.request("hs-a", 4), 0, 4))
    with pytest.raises(StateFileError, match=r"zero_row: row 0, slot 0 \(layer 2\)"):
        check_state_file(float8.wait_for("hs-a.safetensors"), None)


@pytest.mark.parametrize("limit", [1 << 16, 1 << 30, 100_000])
def test_rows_and_scales_fit_a_buffer_and_do_not_overlap(limit: int) -> None:
    pool = BufferPool(limit, 1001, torch.float8_e4m3fn, pinned=False, scaled=True)
    buffer = pool.acquire(0)
    assert buffer.host.shape == (pool.num_rows, 1001) and buffer.host_scales.shape == (pool.num_rows,)
    buffer.host_scales.fill_(3)
    buffer.memory[:] = 0xFF
    assert (buffer.scales == 3).all() and buffer.scales.dtype == numpy.float32
    assert pool.num_rows * 1005 <= pool._buffer_bytes < (pool.num_rows + 1) * 1005 + 4


def test_a_file_of_float8_is_written_row_by_row(float8: Forwards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the scales wait in memory for the end."""
    written = []
    write = StateFileWriter._write
    monkeypatch.setattr(StateFileWriter, "_write", lambda self, data: (written.append(len(data)), write(self, data)))
    request = float8.request("hs-a", 30)
    float8.run((request, 0, 10))
    float8.run((request, 10, 20))
    float8.wait_for("hs-a.safetensors")
    assert written == [120, 240, 8 * 30, 4 * 30]
