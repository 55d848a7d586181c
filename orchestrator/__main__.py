"""The entry point of `orchestrate` and of `python -m orchestrator`."""

import signal

# Until `run` handles Ctrl-C it ends the process silently; during imports it would print a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from orchestrator.cli.main import run

if __name__ == "__main__":
    run()
