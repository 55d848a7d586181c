"""All deviations."""

from __future__ import annotations

from tests.hostile import rows_advice, rows_data, rows_env, rows_files, rows_takeover, rows_wire, rows_words

ROWS = (
    *rows_wire.rows(),
    *rows_words.rows(),
    *rows_files.rows(),
    *rows_data.rows(),
    *rows_env.rows(),
    *rows_takeover.rows(),
    *rows_advice.rows(),
)

# What no verb asks for in a moment, or waits for: tests/local/test_lies.py, sync and fuzz lie about these.
ELSEWHERE = (
    *(
        "beats",
        "store_drop",
        "exec_end",
        "ping",
        "unfollow",
    ),
    *("fingerprint", "vitals"),
    "imports",
)
