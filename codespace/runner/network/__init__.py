"""The daemon's side of the network proxy: the program that stays, a door in it for each run, and what it decided."""
