"""Saves and restores sharded pytrees: durable, verified, on any mesh.

>>> import jax.numpy as jnp, ckpt
>>> state = {"w": jnp.arange(4.0), "step": 3}
>>> done = ckpt.save(state, None, "memory://doc-run", step=3)
>>> ckpt.restore("memory://doc-run")
{'w': array([0., 1., 2., 3.], dtype=float32), 'step': 3}
"""

from pytree import ABSENT as ABSENT

from ._catalog import latest as latest
from ._catalog import steps as steps
from ._checkpoint import Checkpoint as Checkpoint
from ._checkpoint import open as open
from ._errors import BarrierTimeout as BarrierTimeout
from ._errors import CkptError as CkptError
from ._errors import CommitUnknown as CommitUnknown
from ._errors import Damaged as Damaged
from ._errors import LimitExceeded as LimitExceeded
from ._errors import NotFound as NotFound
from ._errors import StepExists as StepExists
from ._errors import StoreError as StoreError
from ._errors import StructureMismatch as StructureMismatch
from ._errors import Unsupported as Unsupported
from ._errors import Untrusted as Untrusted
from ._restore import restore as restore
from ._save import save as save
from ._save import save_async as save_async
