"""Where clients, images and states are: lanes, segments, waves."""
