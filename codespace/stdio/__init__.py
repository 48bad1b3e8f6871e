"""The stdio door: descriptors 0 and 1 carry the protocol, and nothing else ever writes there."""
