"""Shared parts of both command lines: options, tables, terminal."""
