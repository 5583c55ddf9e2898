"""``doctor``: checks of the installation and the machine, each with a remedy."""
