"""Times ckpt beside its peers on the same trees, disks and processes.

`python -m benchmarks` runs everything; `python -m benchmarks --quick` is the
small version for CI. README.md in this folder says what is measured and how.
"""
