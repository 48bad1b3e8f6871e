"""The gateway: what is authorised, remembered and driven.

It reaches files and processes only through the runner's verbs, and answers only through a door.
"""
