"""How long the client waits and how often it tries again. No setting: these follow from how the server behaves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Times in seconds. Tests shorten them."""

    attempts: int = 4
    """Of one sample whose request failed or whose capture was bad, before it is recorded as failed."""

    backoff: float = 2.0
    """Before the second attempt; doubles with each further one. A dying server is noticed within this time."""

    longest_backoff: float = 30.0

    stalls: int = 20
    """Times that one sample may meet a full capture buffer (``sink_stalled``) before it is recorded as failed."""

    deaths_alone: int = 2
    """Times that the server dies with nothing but one sample in flight before that sample is taken to kill it."""

    deaths_in_a_row: int = 5
    """Times that the server dies without finishing a single sample in between before the run stops: then it is the
    server that is broken, not a sample. Enough to isolate two samples that kill it, side by side."""

    silence: float = 120.0
    """A server that answers no request for this long, plus the time below, is taken to hang and is restarted; a
    captured sample whose file does not appear for as long is tried again. Twice the plug-in's wait for a buffer."""

    silence_per_token: float = 0.005
    """Added for each token of the longest request in flight and of one prefill chunk: 200 tokens/s, a tenth of what
    a tiny model does on two processor cores."""

    prefill_chunk_tokens: int = 16384
    """Requests are answered in order, so something is answered at least this often."""

    heartbeat: float = 0.5
    """Between looks at whether the server lives."""

    def longest_silence(self, longest_tokens: int) -> float:
        """How long nothing may happen while a request of this many tokens is in flight."""
        return self.silence + self.silence_per_token * (longest_tokens + self.prefill_chunk_tokens)

    def wait_before(self, attempt: int) -> float:
        """Back-off before this attempt; the second one is number 1."""
        return min(self.backoff * 2 ** (attempt - 1), self.longest_backoff)
