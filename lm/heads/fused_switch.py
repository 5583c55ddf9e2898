"""The switch of the Triton kernels, and the warning where they are missing."""

import logging

_LOGGER = logging.getLogger(__name__)


FUSED = "HIGHRANK_FUSED"  # environment variable; 0: without the Triton kernels


def tell_without_fused(reason: str) -> None:
    """Logs why losses on a GPU do without the Triton kernels."""
    _LOGGER.warning(
        "no Triton kernels (%s): losses go in tensor operations; set %s=0 to be told no more", reason, FUSED
    )
