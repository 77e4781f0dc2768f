"""A picture in text of which mesh positions hold which part of a matrix."""

from __future__ import annotations

from ._box import Shape
from ._mesh import MeshLayout, Spec, format_spec, piece_boxes

_ROWS = 8
_COLUMNS = 8


def draw_layout(shape: Shape, spec: Spec, mesh: MeshLayout) -> str:
    """Draw the first two dimensions of an array, each part with who holds it.

    Positions are numbered in C order over the mesh; a part that several hold is
    replicated there.

    >>> print(draw_layout((4, 8), (("x",), ()), MeshLayout((("x", 2),), ("Auto",))))
    P('x') on (x=2)
    +---+
    | 0 |
    +---+
    | 1 |
    +---+
    """
    boxes = piece_boxes(shape, spec, mesh)
    flat = [(*b.start, 0, 0)[:2] for b in boxes]
    rows = sorted({r for r, _ in flat})
    columns = sorted({c for _, c in flat})
    held: dict[Shape, list[int]] = {}
    for position, place in enumerate(flat):
        held.setdefault(place, []).append(position)
    cells = [
        [_numbers(held.get((r, c), [])) for c in columns[:_COLUMNS]]
        for r in rows[:_ROWS]
    ]
    width = max((len(t) for line in cells for t in line), default=0)
    rule = "+" + ("-" * (width + 2) + "+") * len(cells[0] if cells else [])
    lines = [f"{format_spec(spec)} on {mesh}", rule]
    for line in cells:
        lines += ["|" + "".join(f" {t:^{width}} |" for t in line), rule]
    hidden = len(rows) * len(columns) - sum(map(len, cells))
    return "\n".join(lines + ([f"(+{hidden} more parts)"] if hidden else []))


def _numbers(positions: list[int]) -> str:
    """Write 0,1,2,5 as 0-2,5."""
    runs: list[list[int]] = []
    for p in sorted(positions):
        if runs and p == runs[-1][-1] + 1:
            runs[-1].append(p)
        else:
            runs.append([p])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
