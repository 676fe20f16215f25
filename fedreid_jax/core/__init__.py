"""The engine: types, keys, the client loop, execution and aggregation."""
