"""The red-team kit: claims and vectors as a cheating executor would make them."""
