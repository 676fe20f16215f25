"""The commands `site` and `coordinate`."""
