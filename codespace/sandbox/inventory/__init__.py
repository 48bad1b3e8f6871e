"""What of a root a command may not change or see, by its tree and by what git goes by; and what a run left there."""
