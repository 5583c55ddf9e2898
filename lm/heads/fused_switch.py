"""Switch of the Triton kernels, and the warning if they are missing."""

import logging

_LOGGER = logging.getLogger(__name__)


FUSED = "HIGHRANK_FUSED"  # environment variable; 0 = no Triton kernels


def tell_without_fused(reason: str) -> None:
    """Warn that losses on a GPU do not use the Triton kernels."""
    _LOGGER.warning(
        "no Triton kernels (%s): using slower tensor operations; set %s=0 to silence this", reason, FUSED
    )
