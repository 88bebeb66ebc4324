"""What the cache probe is made of: the kinds of cache (`kinds`), and the condition that one is in (`condition`)."""
