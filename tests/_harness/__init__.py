"""Tools of the tests: process crashes, input/output errors and power cuts."""
