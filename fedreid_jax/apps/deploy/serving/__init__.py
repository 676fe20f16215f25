"""A local web page that searches a gallery for a photograph."""
