"""What can be wrong with a layout that comes from outside.

LayoutError (ValueError)
    InvalidLayout     a manifest or part says something impossible or hostile
        CorruptLayout its bytes are not the ones that were written
    UnknownFeature    a newer format, or a feature this version does not know
    TooLarge          a size, depth or count limit, checked before allocation
"""


class LayoutError(ValueError):
    """The root: something about a layout is wrong."""


class InvalidLayout(LayoutError):
    """A manifest, part or record breaks a rule of the format."""


class CorruptLayout(InvalidLayout):
    """The bytes of a document do not have the length or digest they should."""


class UnknownFeature(LayoutError):
    """The format version, or an entry of `requires`, is not known here."""


class TooLarge(LayoutError):
    """A limit on size, depth or count was passed before anything was built."""
