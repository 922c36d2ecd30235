"""Requests to a server on the loopback interface."""

import urllib.request
from typing import Any

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def open_local(request: urllib.request.Request, timeout_sec: float) -> Any:
    """``urlopen`` without the proxy that the environment may name: it does not know this host's loopback interface."""
    return _OPENER.open(request, timeout=timeout_sec)
