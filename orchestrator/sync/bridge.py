"""rsync's remote shell: passes rsync's pipes to the process that holds the connection.

    rsync --rsh="python -S -E bridge.py FD" ... host:path
      -> bridge.py FD host rsync --server ...
      -> over FD, an inherited socket: the arguments of the command, and both pipes

Standard library only, and few of its modules: it is started once per host and transfer.
"""

import os
import socket
import sys


def main() -> None:
    sock, arguments = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    while arguments[0] == "-l":  # an rsync option: -l user
        arguments = arguments[2:]
    socket.send_fds(sock, ["\0".join(arguments[1:]).encode("utf-8", "surrogateescape")], [0, 1])
    os.close(0)
    os.close(1)
    sock.recv(1)  # rsync waits for this process: it ends with the transfer


if __name__ == "__main__":
    main()
