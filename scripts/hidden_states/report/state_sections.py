"""The part of the page about the states themselves: how large they are, slot by slot, all over the dataset."""

import numpy as np

from hidden_states.report.charts import range_chart
from hidden_states.report.markup import figure, note, section, table, text
from hidden_states.report.norms import TOKENS, StateNorms

BARS, SAMPLES_PER_BAR = 64, 4
"""At most and at least, where there are enough of them."""


def norm_section(norms: StateNorms, slots: list[str]) -> str:
    """``slots`` are the words for each slot."""
    return section("Size of the states", _norms(norms, slots))


def _norms(norms: StateNorms, slots: list[str]) -> str:
    lost = f" {norms.unreadable:,} of the files looked at could not be read; run: snakemake verify."
    if not norms.samples:
        return "<p>No state could be looked at.</p>" + (note(lost) if norms.unreadable else "")
    rms = np.stack(norms.rms)
    rows = [
        [str(slot), text(words), *(figure(float(value)) for value in np.quantile(rms[:, slot], (0, 0.1, 0.5, 0.9, 1)))]
        for slot, words in enumerate(slots)
    ]
    parts = np.array_split(np.arange(len(rms)), min(BARS, max(len(rms) // SAMPLES_PER_BAR, 1)))
    charts = "".join(
        f"<h3>{text(f'Slot {slot}: {words}')}</h3><figure>{_chart(rms[:, slot], parts, norms.samples)}</figure>"
        for slot, words in enumerate(slots)
    )
    words = (
        f"Root mean square of a state's values: the median of at most {TOKENS} tokens of {len(rms):,} samples, the "
        "first token left out. From left to right the dataset in its order; the pale bars go from the 10 % smallest to "
        "the 10 % largest samples, the dark mark is the median. A step or a drift: something changed in between."
    )
    head = ["slot", "holds", "smallest", "10 %", "median", "90 %", "largest"]
    return (
        note(words)
        + table(head, rows, {2, 3, 4, 5, 6})
        + charts
        + (f'<p class="warn">{text(lost)}</p>' if norms.unreadable else "")
    )


def _chart(rms: np.ndarray, parts: list[np.ndarray], samples: list[int]) -> str:
    ranges, hover = [], []
    for part in parts:
        low, middle, high = (float(value) for value in np.quantile(rms[part], (0.1, 0.5, 0.9)))
        ranges.append((low, middle, high))
        first, last = samples[part[0]], samples[part[-1]]
        where = f"row {first:,}" if first == last else f"rows {first:,} to {last:,}"
        hover.append(f"{where}: median {figure(middle)}, 10 to 90 %: {figure(low)} to {figure(high)}")
    return range_chart(ranges, hover, "root mean square over the dataset")
