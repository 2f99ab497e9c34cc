"""Methods: one short file each, citation first, every one a constructor of `tardygrad.Method`."""
