"""Tests of the three packages, the harness that injects faults, and the project."""
