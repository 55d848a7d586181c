"""The SSH transport: paramiko behind the seam of `orchestrator.transport`.

The only room that imports them, and here nothing is imported: ssh_config is asked (`resolve`) while
they load. Keys and known hosts are handled as OpenSSH does; what this client cannot do (host
certificates, FIDO keys, GSSAPI) ends in an error that says so.
"""
