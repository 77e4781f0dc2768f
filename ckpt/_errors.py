"""What can go wrong with a checkpoint, in one tree.

CkptError
    NotFound             no such run, step, checkpoint, leaf or object
    Damaged              stored bytes are not the bytes that were written
    StructureMismatch    the checkpoint and what is asked for differ
    DataMismatch         a data pipeline cannot go on where the saved one stood
    Unsupported          something this version cannot store, read or promise
    Untrusted            a checkpoint breaks a rule that honest ones never break
    LimitExceeded        a limit on size, depth or count, checked before allocation
    StepExists           the step is committed already
    CommitUnknown        the commit may or may not have happened
    BarrierTimeout       other processes did not arrive in time
    StoreError           the disk or the object store refused or failed

Wrong arguments are ValueError or TypeError, raised before any I/O.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["failed", "full", "refused", "unknown", "unsynced"]


class CkptError(Exception):
    """Catches everything that a checkpoint or its storage can do wrong.

    Each subclass says what failed; the message says where and what to do.
    """

    __module__ = "ckpt"


class NotFound(CkptError):
    """The run, step, checkpoint, leaf or object that was named is not there.

    Nothing was changed; another name, or a later time, may succeed.
    """

    __module__ = "ckpt"


class Damaged(CkptError):
    """Stored bytes are missing, truncated or not those that were written.

    The message names the leaf and the object; no value is returned in their place.
    """

    __module__ = "ckpt"


class StructureMismatch(CkptError):
    """The saved tree and the wanted one differ in paths, shapes, dtypes or statics.

    The message lists every difference at once, up to a cap.
    """

    __module__ = "ckpt"


class DataMismatch(CkptError):
    """A data pipeline differs from the saved one, or cannot be set to its position.

    The message names what differs; the source may have moved.
    """

    __module__ = "ckpt"


class Unsupported(CkptError):
    """A value, feature or file system that cannot be handled faithfully here.

    It is refused instead of being approximated.
    """

    __module__ = "ckpt"


class Untrusted(CkptError):
    """A checkpoint holds what no honest writer makes, such as a link or `..`.

    It is refused before anything it points to is touched.
    """

    __module__ = "ckpt"


class LimitExceeded(CkptError):
    """A size, depth or count passes its limit.

    Limits are checked before memory is allocated.
    """

    __module__ = "ckpt"


class StepExists(CkptError):
    """The step is committed already.

    The committed checkpoint is as it was; `overwrite=True` replaces it.
    """

    __module__ = "ckpt"


class CommitUnknown(CkptError):
    """The commit record was sent, and whether it took effect could not be read back.

    Ask `steps()` later: the step is there, complete, or it is not.
    """

    __module__ = "ckpt"


class BarrierTimeout(CkptError):
    """Some processes of the job did not arrive before the deadline.

    The message names them; nothing was committed.
    """

    __module__ = "ckpt"


class StoreError(CkptError):
    """The disk or object store failed, refused, or did not answer in time.

    `outcome` is "failed" when nothing changed, "full" when for want of room, "refused"
    when for credentials or names that no retry mends; "unknown" when the change may
    have happened or may yet, "unsynced" when it may not outlive a power cut.
    """

    __module__ = "ckpt"

    def __init__(self, message: str, *, outcome: Outcome = "failed") -> None:
        """Make the error of one request."""
        super().__init__(message)
        self.outcome: Outcome = outcome
