"""The hands: verbs that read, find, search, patch and run, below one root, and events about them.

Nothing here decides policy. The gateway has authorised what arrives, and each verb is bounded in
time by itself.
"""
