"""Trunks: networks between the word vectors and the head, behind one interface."""
