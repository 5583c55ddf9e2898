"""Files that survive crashes: atomic writes, locks, digests."""
