"""To be replaced."""

from ._cut import PACK_BYTES
from ._leaf import Packed
from ._manifest import check_part_bytes
from ._name import pack_name
from ._pack import pack_rows
from ._part import parse_part


def pack_sizes(leaves, *, limit=PACK_BYTES):
    processes = {0}
    for leaf in leaves:
        if isinstance(leaf.store, Packed):
            processes |= {process for process, _ in leaf.store.writers}
    sizes = {}
    for process in sorted(processes):
        for row in pack_rows(leaves, process, limit=limit):
            sizes[pack_name(process, row.pack)] = row.offset + row.length
    return sizes


def check_parts(manifest, parts):
    for process, data in parts:
        check_part_bytes(manifest, process, data)
        parse_part(manifest, process, data)
