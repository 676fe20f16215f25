"""Clients, images and states on devices: lanes, segments, waves, stores."""
