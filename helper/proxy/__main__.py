"""`python -I -m helper.proxy`, started by the daemon with its control socket on descriptor 0."""

from helper.proxy.keeper import main

main()
