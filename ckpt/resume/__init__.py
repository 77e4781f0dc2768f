"""Training that goes on as if nothing had happened."""

from ._batches import Batches as Batches, shuffle_indices as shuffle_indices
from ._fingerprint import compare_fingerprints as compare_fingerprints
from ._stream import Stream as Stream, open_stream as open_stream

__all__ = [
    "Batches",
    "Stream",
    "compare_fingerprints",
    "open_stream",
    "shuffle_indices",
]
