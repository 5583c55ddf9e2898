"""The regularisation of AWD-LSTM (Merity et al. 2018): variational dropout and penalties on activations.

T time · B streams · D features.
"""

from torch import Tensor


def locked_dropout(states: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout of (T, B, D) with one mask (1, B, D) for all time steps (Gal and Ghahramani 2016)."""
    if not training or rate == 0:
        return states
    mask = states.new_empty(1, *states.shape[1:]).bernoulli_(1 - rate).div_(1 - rate)
    return states * mask


def word_dropout(words: Tensor, tokens: Tensor, vocab_size: int, rate: float, training: bool) -> Tensor:
    """Drops whole words from a window: one draw for each word of the vocabulary (Merity et al. 2018, §4.3).

    Equal to dropping rows of the embedding matrix, of which the output layer sees the undropped one.

    Args:
        words: embedded tokens, (T, B, D).
        tokens: their ids, (T, B).
    """
    if not training or rate == 0:
        return words
    mask = words.new_empty(vocab_size).bernoulli_(1 - rate).div_(1 - rate)
    return words * mask[tokens][..., None]


def activation_penalty(hidden: Tensor) -> Tensor:
    """AR: mean square of the dropped outputs of the last layer (Merity et al. 2018, §4.6)."""
    return hidden.square().mean()


def slowness_penalty(raw: Tensor) -> Tensor:
    """TAR: mean square of the changes from step to step of the undropped outputs; 0 for a single step."""
    if raw.shape[0] < 2:
        return raw.new_zeros(())
    return (raw[1:] - raw[:-1]).square().mean()
