"""One of three processes, which enters its run before or after it joins the job.

Arguments: the coordinator's port, the process, "before" or "after", the run.
"""

import sys
import time
from contextlib import ExitStack

import jax
import numpy as np

import ckpt


def main(port: int, process: int, when: str, folder: str) -> None:
    jax.config.update("jax_num_cpu_devices", 1)
    run = ckpt.Run(folder, save=None)
    with ExitStack() as stack:
        if when == "before":
            stack.enter_context(run)
        jax.distributed.initialize(
            f"127.0.0.1:{port}", num_processes=3, process_id=process
        )
        if when == "after":
            stack.enter_context(run)
        state, _ = run.resume({"done": np.int64(0)})
        for step in run.steps():
            state = {"done": state["done"] + 1}
            time.sleep(0.005)
            run.saved(step, state)
            if step == 5:
                print("ready", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
