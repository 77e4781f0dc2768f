"""The examples train, go on after a kill -9, and are started again as they ask."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

import ckpt
from tests._harness.jobs import JobServer, wait_until
from tests.resume._jobs import start_job, values_of

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RUN = "tests.resume._example:run_example"
SCRIPTS = {"plain_loop": 60, "linen_mlp": 60, "nnx_transformer": 40, "lora": 30}


def read_losses(log: Path) -> dict[int, str]:
    found: dict[int, str] = {}
    with suppress(FileNotFoundError):
        for line in log.read_text().splitlines():
            step, _, loss = line.partition(" ")
            if step.isdecimal() and loss.startswith(("0x", "-0x")):
                found[int(step)] = loss
    return found


@pytest.mark.campaign
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_goes_on_after_a_kill(
    server: JobServer, folder: Path, cache: Path, name: str
) -> None:
    file, last = str(EXAMPLES / f"{name}.py"), SCRIPTS[name]
    losses: list[dict[int, str]] = []
    for number, strikes in enumerate([False, True]):
        log, run = folder / f"{number}.log", folder / f"run-{number}"
        arguments = ["--run", str(run), "--steps"]
        if strikes:
            with start_job(server, 1, cache) as job:
                job.begin(RUN, file, [*arguments, "1000000"], str(log))
                wait_until(lambda log=log: 20 in read_losses(log), timeout=120)
                wait_until(
                    lambda run=run: 20 in ckpt.steps(run) or 50 in ckpt.steps(run)
                )
                job.kill(0)
            (begun,) = {max(ckpt.steps(run))}
            assert begun >= 20
            log.unlink()
            last = begun + 20
        with start_job(server, 1, cache) as job:
            answers = job.run(RUN, file, [*arguments, str(last)], str(log), timeout=120)
        assert values_of(answers) == [0]
        losses.append(read_losses(log))
        assert max(ckpt.steps(run)) == last
    whole, resumed = losses
    shared = whole.keys() & resumed.keys()
    assert shared
    assert {step: resumed[step] for step in shared} == {s: whole[s] for s in shared}


def test_a_frozen_base_is_written_once(
    server: JobServer, folder: Path, cache: Path
) -> None:
    run = folder / "run"
    arguments = ["--run", str(run), "--steps", "60"]
    with start_job(server, 1, cache) as job:
        job.run(RUN, str(EXAMPLES / "lora.py"), arguments, str(folder / "log"))
    assert ckpt.steps(run) == [20, 40, 60]
    sizes = [
        sum(f.stat().st_size for f in path.rglob("base/*/c/**/*") if f.is_file())
        for path in sorted(run.glob("*-*"))
    ]
    assert sizes[0] > 4 * 4 * 1024 * 1024
    assert sizes[1:] == [0, 0]
    assert all(ckpt.verify(run, step=step).ok for step in (20, 40, 60))


def test_examples_are_short() -> None:
    lines = {f.name: len(f.read_text().splitlines()) for f in EXAMPLES.glob("*.py")}
    assert len(lines) == 5
    assert max(lines.values()) <= 80, lines


def write_script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_restart_loop_starts_what_saved_again(folder: Path) -> None:
    train = write_script(
        folder,
        "train",
        f"n=$(cat {folder}/n 2>/dev/null || echo 0); echo $((n + 1)) > {folder}/n\n"
        "case $n in 0 | 2) exit 85 ;; 1) exit 7 ;; *) exit 0 ;; esac",
    )
    done = subprocess.run(
        [EXAMPLES / "restart.sh", train],
        env=os.environ | {"PAUSE": "0"},
        timeout=30,
        check=False,
    )
    assert done.returncode == 0
    assert (folder / "n").read_text() == "4\n"


def test_the_restart_loop_gives_up_and_says_so(folder: Path) -> None:
    train = write_script(folder, "train", "exit 3")
    done = subprocess.run(
        [EXAMPLES / "restart.sh", train],
        env=os.environ | {"PAUSE": "0", "RESTARTS": "2"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr == "restart.sh: failed 3 times, the last time with 3\n"


def test_the_restart_loop_passes_a_signal_on_and_ends(folder: Path) -> None:
    train = write_script(
        folder, "train", f"trap 'exit 85' TERM; touch {folder}/up; sleep 20 & wait"
    )
    with subprocess.Popen([EXAMPLES / "restart.sh", train]) as loop:
        wait_until((folder / "up").exists)
        loop.send_signal(signal.SIGTERM)
        assert loop.wait(10) == 85


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (85, True), (9, True)])
def test_the_slurm_script_requeues_what_is_not_done(
    folder: Path, code: int, *, requeued: bool
) -> None:
    write_script(folder, "srun", f"exit {code}")
    write_script(folder, "scontrol", f'echo "$@" > {folder}/told')
    done = subprocess.run(
        ["/bin/bash", EXAMPLES / "slurm.sbatch"],
        env=os.environ
        | {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
        | {"SLURM_JOB_NAME": "train"},
        timeout=30,
        check=False,
    )
    assert done.returncode == code
    told = folder / "told"
    assert told.exists() == requeued
    if requeued:
        assert told.read_text() == "requeue 17\n"


def test_the_slurm_script_passes_the_signal_to_the_tasks(folder: Path) -> None:
    write_script(
        folder, "srun", f"trap 'exit 85' USR1; echo $$ > {folder}/pid; sleep 20 & wait"
    )
    write_script(
        folder,
        "scancel",
        f'[ "$1 $2" = "--signal=USR1 17.0" ] && kill -USR1 $(cat {folder}/pid)',
    )
    write_script(folder, "scontrol", f'echo "$@" > {folder}/told')

    def read_pid() -> str:
        return (folder / "pid").read_text()

    with subprocess.Popen(
        ["/bin/bash", EXAMPLES / "slurm.sbatch"],
        env=os.environ
        | {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
        | {"SLURM_JOB_NAME": "train"},
    ) as script:
        wait_until(lambda: (folder / "pid").exists() and read_pid() != "")
        script.send_signal(signal.SIGUSR1)
        assert script.wait(10) == 85
    assert (folder / "told").read_text() == "requeue 17\n"


def test_the_kubernetes_file_takes_our_exit_code_for_no_failure() -> None:
    text = (EXAMPLES / "kubernetes.yaml").read_text()
    service, job = yaml.safe_load_all(text)
    assert service["kind"] == "Service"
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"]["values"] == [ckpt.resume.REQUEUE]
