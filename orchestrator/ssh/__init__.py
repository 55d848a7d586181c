"""The SSH transport: fabric and paramiko behind the seam of `orchestrator.transport`, and OpenSSH's own client.

The only room that imports paramiko, and here nothing is imported: ssh_config is asked (`resolve`) while
it loads. Keys and known hosts are handled as OpenSSH does; what paramiko cannot do goes through `ssh`.
"""
