from __future__ import annotations

import sys
from pathlib import Path

from tests.node.agent_client import AgentClient
from tests.node.harness import new_run

RUN = new_run()  # whoever sweeps a run ends what bears its name on the whole machine


def test_a_stop_that_overtakes_a_start_waits_for_it(tmp_path: Path) -> None:
    with AgentClient(tmp_path / "state") as agent:
        spec: dict[str, object] = {
            "argv": [sys.executable, "-c", "import time; time.sleep(600)"],
            "env": {},
            "cwd": str(tmp_path),
            "setup": None,
            "python": sys.executable,
            "grace": 1.0,
            "port": 2222,
            "endless": False,
            "lifeline": 3600.0,
            "log_cap": 1 << 20,
        }
        # All at once, as a controller does that is stopped in the moment of its launch.
        starts = [
            agent.send("start", run=RUN, attempt="1", task=f"worker/{n}", spec=spec, plan="{}")
            for n in range(4)
        ]
        stop = agent.send("stop", run=RUN, attempt=None, tasks=None, grace=1.0, kill=True)
        for start in starts:
            assert agent.reply(start)[0]["started"]
        assert agent.reply(stop)[0]["asked"] == [f"worker/{n}" for n in range(4)]
        agent.request(
            "follow",
            run=RUN,
            attempt="1",
            tasks=[{"task": f"worker/{n}", "log": 0, "report": 0} for n in range(4)],
        )
        agent.until(
            lambda: all(
                agent.states(f"worker/{n}")[-1:] and agent.states(f"worker/{n}")[-1]["state"] == "exited"
                for n in range(4)
            )
        )
        assert agent.request("sweep", run=RUN)["killed"] == []
