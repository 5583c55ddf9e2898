"""Mutants, builds of our own code with one safeguard taken out, by the subject of the safeguard.

A mutant replaces a piece of source that occurs exactly once; where it no longer does, the list is out of
date, which is an error. The test that notices it is one of the default suite.
"""
