"""Retrieval metrics of re-identification: protocols, ranking, re-ranking."""

from fedreid_jax.evaluation.ranking import evaluate_ranking
from fedreid_jax.evaluation.retrieval import evaluate_retrieval

__all__ = ['evaluate_ranking', 'evaluate_retrieval']
