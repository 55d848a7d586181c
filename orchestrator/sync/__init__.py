"""Transfers of folders: from this machine to hosts, and from hosts to this machine or other hosts."""
