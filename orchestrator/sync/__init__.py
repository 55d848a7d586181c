"""Folders of this machine to hosts, and folders of hosts to this machine and to other hosts."""
