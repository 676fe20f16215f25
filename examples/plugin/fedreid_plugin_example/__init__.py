"""Plug-ins of fedreid_jax: components, a network, a source, an evaluator."""
