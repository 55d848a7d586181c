"""The package that is sent to the hosts: standard library only, Python 3.8+, no imports from outside."""
