"""The package that ships to the hosts: standard library only, Python 3.8+, imports nothing above it."""
