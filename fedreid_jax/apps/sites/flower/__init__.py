"""The parts of a federation that Flower runs."""
