"""Plug-ins of fedreid_jax: two components, a network and a data source."""
