"""The SSH transport behind `orchestrator.transport`: fabric, paramiko, and OpenSSH's own client.

No other room imports them. Keys and known hosts are handled as OpenSSH does; what paramiko cannot do goes
through `ssh`.
"""
