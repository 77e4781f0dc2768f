"""What can be wrong with a tree, or with a tree's structure read from outside.

TypeError
    UnsupportedTree     a tree that cannot be named leaf by leaf
ValueError
    InvalidStructure    a structure in JSON that breaks a rule of its format
"""


class UnsupportedTree(TypeError):
    """The tree cannot be flattened; the message names the path."""


class InvalidStructure(ValueError):
    """The JSON value is no structure; the message names the place in it."""


def at(path: str) -> str:
    """Return how a message names the leaf or node at a path."""
    if not path:
        return "at the root"
    return f"at `{path}`" if len(path) <= 500 else f"at `{path[:400]}...{path[-90:]}`"
