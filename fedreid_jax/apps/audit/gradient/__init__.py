"""Images from the gradient of one client."""
