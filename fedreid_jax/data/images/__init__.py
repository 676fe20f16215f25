"""Images: decoding, colour, augmentation."""
