"""Images and labels: worlds, folders, client tables, augmentation."""
