"""Saves and restores sharded pytrees: durable, verified, on any mesh.

>>> import jax.numpy as jnp, ckpt
>>> state = {"w": jnp.arange(4.0), "step": 3}
>>> done = ckpt.save(state, None, "memory://doc-run", step=3)
>>> ckpt.restore("memory://doc-run")
{'w': array([0., 1., 2., 3.], dtype=float32), 'step': 3}
"""

from pytree import ABSENT as ABSENT

from ._checkpoint import Checkpoint as Checkpoint
from ._copy import copy as copy
from ._diff import Change as Change, Diff as Diff, diff as diff
from ._drain import drain as drain
from ._errors import (
    BarrierTimeout as BarrierTimeout,
    CkptError as CkptError,
    CommitUnknown as CommitUnknown,
    Damaged as Damaged,
    DataMismatch as DataMismatch,
    LimitExceeded as LimitExceeded,
    NotFound as NotFound,
    StepExists as StepExists,
    StoreError as StoreError,
    StructureMismatch as StructureMismatch,
    Unsupported as Unsupported,
    Untrusted as Untrusted,
)
from ._export import save_safetensors as save_safetensors
from ._follow import follow as follow
from ._open import open as open
from ._per_process import PerProcess as PerProcess
from ._plan import RestorePlan as RestorePlan, plan as plan
from ._prune import Keep as Keep, Removed as Removed, prune as prune
from ._remesh import remesh as remesh
from ._restore import restore as restore
from ._save import save as save, save_async as save_async
from ._steps import latest as latest, steps as steps
from ._verify import Problem as Problem, Report as Report, verify as verify
from .resume import Run as Run, every as every

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "BarrierTimeout",
    "Change",
    "Checkpoint",
    "CkptError",
    "CommitUnknown",
    "Damaged",
    "DataMismatch",
    "Diff",
    "Keep",
    "LimitExceeded",
    "NotFound",
    "PerProcess",
    "Problem",
    "Removed",
    "Report",
    "RestorePlan",
    "Run",
    "StepExists",
    "StoreError",
    "StructureMismatch",
    "Unsupported",
    "Untrusted",
    "copy",
    "diff",
    "drain",
    "every",
    "follow",
    "latest",
    "open",
    "plan",
    "prune",
    "remesh",
    "restore",
    "save",
    "save_async",
    "save_safetensors",
    "steps",
    "verify",
]
