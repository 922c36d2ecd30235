"""What can go wrong with one attempt at one sample; each kind is answered differently (see ``engine``)."""


class Refused(Exception):
    """The server said no (HTTP 4xx): asking again would not help. The message holds its words."""


class RequestFailed(Exception):
    """No answer, or HTTP 5xx: worth another attempt, unless the server turns out to be dead."""


class BadCapture(Exception):
    """The request went through, but what was captured is not right: worth another attempt."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class SinkStalled(Exception):
    """The server cannot write as fast as it computes: ask for less at a time."""


class ServerLost(Exception):
    """The server died or hangs. ``in_flight``: it had this sample and had not answered."""

    def __init__(self, in_flight: bool) -> None:
        super().__init__("the server died or hangs")
        self.in_flight = in_flight


class DiskFull(Exception):
    """No space left where the states are written."""
