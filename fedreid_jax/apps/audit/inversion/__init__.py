"""Images from a model and the statistics that a run shares."""
