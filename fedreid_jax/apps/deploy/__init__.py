"""Use of a trained model: vectors, search, a server, exports."""
