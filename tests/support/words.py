"""A handful of words to make random sentences of."""

WORDS = [
    "well", "so", "yeah", "we", "you", "they", "like", "the",
    "car", "dog", "rain", "paint", "a", "lot", "now", "then",
]  # fmt: skip
