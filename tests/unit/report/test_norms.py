"""The size of the states is that of the files, wherever in the dataset, and read from a few tokens of a few of them."""

import numpy as np
import pytest
import torch
from helpers.finished_run import Run, Sample, make_sample
from helpers.states import header_for, write_state
from hidden_states.capture.float8 import quantised
from hidden_states.report import norms
from hidden_states.report.figures import gather
from hidden_states.report.norms import StateNorms, chosen_rows, evenly, slot_rms
from hidden_states.report.state_sections import norm_section
from hidden_states.store.checksums import StateFileError

SLOTS = ["L = 2", "L = 4", "L = 5", "final"]


def constant(num_tokens: int, *values: float, first: float = 1000.0) -> Sample:
    """A sample whose state in slot s is ``values[s]`` in every column, but for its first token."""
    states = np.broadcast_to(np.array(values, np.float32)[None, :, None], (num_tokens, len(values), 4)).copy()
    if num_tokens > 1:
        states[0] = first
    bits = (states.view(np.uint32) >> 16).astype("<u2")
    return Sample(list(range(num_tokens)), [1] * num_tokens, bits)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 9, 40])
def test_each_slot_has_its_own_size_and_the_first_token_none(tmp_path, num_tokens):
    run = Run(tmp_path, [[constant(num_tokens, 0.5, -1, 2, 4)]]).write()
    assert slot_rms(run.state_path(run.key(0))).tolist() == [0.5, 1, 2, 4]


def test_root_mean_square_of_random_states_is_that_of_float64(tmp_path):
    run = Run(tmp_path, [[make_sample(3, 9)]]).write()
    states = (run.chunks[0][0].states.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    expected = np.median(np.sqrt((states[1:] ** 2).mean(axis=2)), axis=0)
    assert slot_rms(run.state_path(run.key(0))) == pytest.approx(expected, rel=1e-6)


def test_float8_is_read_with_its_scales(tmp_path):
    tokens = list(range(6))
    states = torch.randn(6, 4, 8) * torch.tensor([0.5, 1, 2, 40])[:, None]
    stored, scales = quantised(list(states.unbind(1)))
    content = stored.view(torch.uint8).numpy()
    path = tmp_path / "a.safetensors"
    write_state(path, tokens, header_for(tokens, dtype="F8_E4M3"), content, scales.numpy())
    restored = (stored.float() * scales[:, None, None])[1:]
    assert slot_rms(path) == pytest.approx(restored.square().mean(2).sqrt().median(0).values.numpy(), rel=1e-6)


def test_a_truncated_or_missing_file_is_counted_and_the_rest_goes_on(tmp_path):
    run = Run(tmp_path, [[constant(tokens, 1, 1, 1, 1) for tokens in (3, 4, 5)]]).write()
    run.package()
    run.state_path(run.key(0)).unlink()
    path = run.state_path(run.key(1))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    found = gather(run.results, 1).norms
    assert (found.samples, found.unreadable) == ([2], 2)
    assert "2 of the files looked at could not be read" in norm_section(found, SLOTS)
    with pytest.raises(StateFileError):
        slot_rms(path)


def test_a_chunk_of_other_states_shows_in_its_place(tmp_path):
    good = [[constant(3 + number + 15 * chunk, 1, 1, 1, 1) for number in range(12)] for chunk in range(3)]
    good[1] = [constant(18 + number, 1, 1, 7, 1) for number in range(12)]
    run = Run(tmp_path, good).write()
    run.package()
    found = gather(run.results, 3).norms
    assert found.samples == list(range(36))
    assert [rms[2] for rms in found.rms] == [1] * 12 + [7] * 12 + [1] * 12
    page = norm_section(found, SLOTS)
    assert "rows 16 to 19: median 7, 10 to 90 %: 7 to 7" in page and page.count("<svg") == 4


def test_only_so_many_states_are_read_however_many_there_are():
    for num_chunks, rows in ((1, 10**6), (7, 10**5), (1000, 1000), (1024, 3), (1500, 1000), (5000, 200)):
        chosen = [chosen_rows(rows, chunk, num_chunks) for chunk in range(num_chunks)]
        total = sum(len(part) for part in chosen)
        assert norms.STATES * 0.8 < total <= norms.STATES
        assert all(0 <= row < rows for part in chosen for row in part)
        assert chosen[0] and any(chosen[-6:])


def test_numbers_are_spread_evenly():
    assert evenly(10, 4) == [0, 2, 5, 7] and evenly(3, 4) == [0, 1, 2] and evenly(0, 4) == []


def test_a_dataset_without_states_says_so():
    assert "No state could be looked at" in norm_section(StateNorms(), SLOTS)
