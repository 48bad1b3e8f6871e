"""Names and lines below a root: by ripgrep, which is locked in, and by a walk where that does not do."""
