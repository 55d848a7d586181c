"""The SSH transport behind the seam of `orchestrator.transport`: fabric, paramiko, and OpenSSH's own client.

The only room that imports them. Keys and known hosts are handled as OpenSSH does; what paramiko cannot do
goes through `ssh`.
"""
