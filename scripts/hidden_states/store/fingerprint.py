"""The fingerprint: one name for everything that decides what a hidden state is."""

import hashlib
from typing import Any

from hidden_states.files import canonical_json


def fingerprint(identity: dict[str, Any]) -> str:
    """BLAKE2b-128, in hex (32 characters), of ``identity`` as canonical JSON: the order of keys does not matter.

    States of two fingerprints never mix: the fingerprint is a folder of the store and stands in every header.
    """
    return hashlib.blake2b(canonical_json(identity).encode(), digest_size=16).hexdigest()
