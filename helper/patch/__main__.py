"""`python -I -m helper.patch`: started by the runner, ended by closing its stdin."""

import gc

from helper.patch.wire import claim, serve

if __name__ == "__main__":
    gc.freeze()  # what was imported stays: a collection in the middle of a patch need not walk it
    serve(*claim())
