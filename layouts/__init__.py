"""Where the bytes of an array live: boxes, meshes, chunks, plans and the manifest.

Pure values and functions; no I/O. See DESIGN.md for the format these describe.
"""

from ._box import (
    Box as Box,
    Grid as Grid,
    Shape as Shape,
    box_of_index as box_of_index,
    intersect as intersect,
    whole as whole,
)
from ._cut import (
    CHUNK_BYTES as CHUNK_BYTES,
    OBJECT_BYTES as OBJECT_BYTES,
    PACK_BYTES as PACK_BYTES,
    PACK_PIECE_BYTES as PACK_PIECE_BYTES,
    cut_chunk as cut_chunk,
    cut_object as cut_object,
)
from ._dtype import (
    DTYPES as DTYPES,
    dtype_of as dtype_of,
    name_of as name_of,
    stored_dtype as stored_dtype,
)
from ._errors import (
    InvalidLayout as InvalidLayout,
    LayoutError as LayoutError,
    TooLarge as TooLarge,
    UnknownFeature as UnknownFeature,
)
from ._json import (
    BODY_BYTES as BODY_BYTES,
    digest as digest,
    dump_json as dump_json,
    frame as frame,
    parse_json as parse_json,
    unframe as unframe,
)
from ._leaf import Chunked as Chunked, Leaf as Leaf, Packed as Packed
from ._manifest import (
    CODECS as CODECS,
    Manifest as Manifest,
    PartRef as PartRef,
    check_part_bytes as check_part_bytes,
    parse_manifest as parse_manifest,
)
from ._mesh import (
    MeshLayout as MeshLayout,
    Placement as Placement,
    Relaid as Relaid,
    Spec as Spec,
    format_spec as format_spec,
    mesh_layout as mesh_layout,
    piece_boxes as piece_boxes,
    piece_grid as piece_grid,
    relay_spec as relay_spec,
    spec_of as spec_of,
    split_counts as split_counts,
)
from ._name import (
    assign_names as assign_names,
    check_name as check_name,
    pack_name as pack_name,
    part_name as part_name,
)
from ._pack import (
    PackRow as PackRow,
    pack_rows as pack_rows,
    written_cells as written_cells,
)
from ._part import (
    CHECKSUM_BYTES as CHECKSUM_BYTES,
    FileEntry as FileEntry,
    ObjectPart as ObjectPart,
    Part as Part,
    chunk_bytes as chunk_bytes,
    expected_objects as expected_objects,
    object_chunks as object_chunks,
    object_name as object_name,
    parse_part as parse_part,
)
from ._picture import draw_layout as draw_layout
from ._read_plan import (
    REQUEST_BYTES as REQUEST_BYTES,
    CellRead as CellRead,
    LeafRead as LeafRead,
    ReadPlan as ReadPlan,
    merge_runs as merge_runs,
    plan_leaf_read as plan_leaf_read,
)
from ._record import (
    CommitRecord as CommitRecord,
    attempt_directory as attempt_directory,
    attempt_name as attempt_name,
    attempt_of_name as attempt_of_name,
    parse_record as parse_record,
    record_name as record_name,
    step_of_record as step_of_record,
)
from ._write_plan import (
    Holders as Holders,
    ObjectWrite as ObjectWrite,
    Pieces as Pieces,
    WriteLimits as WriteLimits,
    WritePlan as WritePlan,
    assign_writers as assign_writers,
    lay_out as lay_out,
    plan_write as plan_write,
)
from ._zarr import (
    array_document as array_document,
    shard_index as shard_index,
    zarr_documents as zarr_documents,
)

__all__ = sorted(n for n in dir() if not n.startswith("_"))
