"""How much memory a process needs beyond what its imports take."""

import subprocess
import sys

HOSTILE_BYTES = 25 << 20
"""What refusing a file may take: with JAX on Python 3.11, 200 MiB in all."""


def measure_growth(imports: str, work: str, *arguments: str) -> int:
    """Run `work` in a Python of its own; return how many bytes its peak has grown."""
    program = (
        f"import sys\n{imports}\n"
        "def peak():\n"
        "    lines = open('/proc/self/status').read()\n"
        "    return int(lines.partition('VmHWM:')[2].split()[0]) << 10\n"
        f"before = peak()\n{work}\nprint(peak() - before)\n"
    )
    command = [sys.executable, "-c", program, *arguments]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(told.stdout)


def refused(error: str, call: str) -> str:
    """Return code that makes a call, which must raise an error of ckpt."""
    return (
        f"try:\n    {call}\nexcept ckpt.{error}:\n    pass\n"
        "else:\n    sys.exit('expected a refusal, found none')"
    )
