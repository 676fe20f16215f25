"""Images and labels: sources, partitions, sampling and augmentation."""
