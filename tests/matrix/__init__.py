"""The fault matrix: what is done to the program, how often, and what has to hold each time.

A *row* is a kind of fault. Its cases are pure functions of (row, seed, index): the default suite takes the
first few (``system/test_matrix.py``), ``scripts/nightly.py`` as many as a night demands. The rows are listed
in :mod:`matrix.table`.
"""
