"""`python -I -m helper.patch`: started by the runner, ended by closing its stdin."""

from helper.patch.wire import claim, serve

if __name__ == "__main__":
    serve(*claim())
