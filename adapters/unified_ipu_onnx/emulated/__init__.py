"""PopART's own names on the host, for development where no IPU is."""
