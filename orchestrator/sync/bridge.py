"""The program that rsync runs as its remote shell: hands rsync's pipes to the holder of the connection.

    rsync --rsh="python -S -E bridge.py FD" ... host:path
      -> bridge.py FD host rsync --server ...
      -> over FD, a socket that is inherited: the words of the command, and both pipes

Standard library only, and few of its modules: it is started once per host and transfer.
"""

import os
import socket
import sys


def main() -> None:
    sock, words = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    while words[0] == "-l":  # an option of rsync's own: -l user
        words = words[2:]
    socket.send_fds(sock, ["\0".join(words[1:]).encode("utf-8", "surrogateescape")], [0, 1])
    os.close(0)
    os.close(1)
    sock.recv(1)  # rsync waits for this process: it ends with the transfer


if __name__ == "__main__":
    main()
