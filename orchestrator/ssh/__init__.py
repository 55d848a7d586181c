"""The SSH transport behind the seam of `orchestrator.transport`: fabric, paramiko, and OpenSSH's own client.

The only room that imports them, and here nothing is imported: ssh_config is asked (`resolve`) while
they load. Keys and known hosts are handled as OpenSSH does; what paramiko cannot do goes through `ssh`.
"""
