"""What both command lines share: options, tables, terminal."""
