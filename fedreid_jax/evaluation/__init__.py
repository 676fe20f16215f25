"""Retrieval metrics of re-identification: protocols, ranking, re-ranking."""
