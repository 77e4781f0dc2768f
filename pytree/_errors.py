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
    return f"at `{path}`" if path else "at the root"
