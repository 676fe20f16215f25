"""The interface of a method: components, hooks, contexts and guarantees."""
