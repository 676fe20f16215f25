"""The contract of a method: components, hooks, contexts and guarantees."""
