"""A host as an object: its agents, tasks, and disk, with the node's own rules and a model of processes."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.node.base.fault import NodeError
from orchestrator.node.serve import frames
from orchestrator.node.task import state
from orchestrator.node.task.supervisor import KILL, NOTHING, OVER, TERM_ALL, TERM_GROUP, Ending
from tests.sim.scheduler import EPOCH

if TYPE_CHECKING:
    from tests.sim.network import SimulatedChannel
    from tests.sim.world import World

IDLE = 120.0
CHUNK = 64 << 10
RESTARTED = "the machine was restarted"
_SIGKILL, _SIGTERM = 9, 15


class Conduct:
    """Behavior of a program: how long it trains, how it ends, and how it reacts to TERM."""

    def __init__(self, dice: random.Random, length: float) -> None:
        self.length = length * dice.uniform(0.8, 1.2)
        self.code, self.signal = 0, 0
        self.pause = dice.uniform(0.3, 6.0)  # between two lines
        self.on_term = dice.choice([0.02, 0.3, 1.5])  # seconds; inf: it ignores TERM
        self.on_kill = 0.01
        self.hangs_at = float("inf")
        self.bursts = False
        self.prints = True


class Task:
    """One claimed task: its supervisor, its processes, its files."""

    def __init__(self, node: Node, run: str, attempt: str, name: str, spec: Mapping[str, Any]) -> None:
        self.node, self.run, self.attempt, self.name, self.spec = node, run, attempt, name, spec
        self.log, self.report = bytearray(), bytearray()
        self.times: list[tuple[int, int]] = []
        self.locked = True  # a guard or supervisor is alive
        self.alive = False  # a process of the program is alive
        self.conduct = node.world.conduct(self)
        self.ending = Ending()
        self.state: dict[str, Any] = dict.fromkeys(("pid", "exit_code", "exit_signal", "ended_ns"))
        self.state |= {"state": state.STARTING, "want": state.WANT_RUN, "started_ns": node.time_ns()}
        self.state |= {"gaps": [], "oom_kills": 0, "restarted": False, "message": ""}
        self.incarnation = node.boot
        self.began = self.spoke = 0.0
        self._line = self._step = 0
        self._ticking = False

    @property
    def final(self) -> bool:
        return state.is_final(self.state)

    def begin(self) -> None:
        if not self._same_life():
            return
        world = self.node.world
        self.alive, self.began = True, world.now
        self.spoke = world.now
        world.started(self)
        self.state.update(state=state.RUNNING, pid=world.pid())
        self.changed()
        self._later(self.conduct.pause, self._print)
        self._later(self.conduct.length, self.leave)
        fence = self.spec.get("fence")
        if fence:
            self._later(fence / 4, self._look_at_fence)
        if self.ending.want != state.WANT_RUN:
            self._tick()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.node.world.after(seconds, lambda: call() if self._same_life() else None)

    def _same_life(self) -> bool:
        return self.incarnation == self.node.boot and self.locked

    def changed(self) -> None:
        for agent in self.node.agents:
            agent.news()

    # --- the program ---

    def _print(self) -> None:
        world = self.node.world
        if not self.alive or world.now - self.began >= self.conduct.hangs_at:
            return
        self._line += 1
        text = f"{self.name} {self.attempt} line {self._line}\n".encode()
        if self.conduct.bursts and self._line == 2:
            text = text * 6000
        self.write(text)
        self._step += 1
        self.report += json.dumps({"kind": "progress", "step": self._step, "loss": 1.0}).encode() + b"\n"
        self.changed()
        self._later(self.conduct.pause, self._print)

    def write(self, text: bytes) -> None:
        self.spoke = self.node.world.now
        if self.node.full:
            self.node.world.hit("node-disk-full")
            why, now = "No space left on device", self.node.time_ns()
            self.state["gaps"].append({"bytes": len(text), "why": why, "offset": len(self.log), "ns": now})
            return
        self.times.append((len(self.log), self.node.time_ns()))
        self.log += text

    def leave(self, code: int | None = None, signal: int | None = None) -> None:
        """The program ends."""
        if not self.alive:
            return
        if code is None and signal is None:
            if self.node.world.now - self.began >= self.conduct.hangs_at:
                return
            code, signal = (None, self.conduct.signal) if self.conduct.signal else (self.conduct.code, None)
        self.alive = False
        if self.locked:
            self.state.update(exit_code=code, exit_signal=signal)
            self._later(0.005, self._conclude)

    def _conclude(self) -> None:
        if not self.final and self.locked and not self.alive:
            self._end(state.EXITED)

    def _end(self, status: str, message: str = "") -> None:
        known = self.state["exit_code"] is not None or self.state["exit_signal"] is not None
        status = state.EXITED if status == state.LOST and known else status
        self.state.update(state=status, ended_ns=self.node.time_ns(), message=message)
        self.state["seconds"] = self.node.world.now - self.began if status == state.EXITED else None
        self.locked = False
        self.changed()

    # --- its supervisor ---

    def ask(self, want: str, grace: float) -> bool:
        if self.final or not self.locked:
            return False
        self.node.world.after(0.005, lambda: self._asked(want, grace))
        return True

    def _asked(self, want: str, grace: float) -> None:
        if self.final or not self.locked:
            return
        self.ending.ask(want, grace, self.node.world.now)
        self.state["want"] = self.ending.want
        if self.alive:
            self._tick()

    def _tick(self) -> None:
        if self.final or not self._same_life() or not self.alive:
            return
        what = self.ending.step(self.node.world.now, self.alive, self.alive)
        if what in (TERM_GROUP, TERM_ALL):
            self.state["state"] = state.STOPPING
            self._later(self.conduct.on_term, lambda: self.leave(signal=_SIGTERM))
        elif what == KILL:
            self._later(self.conduct.on_kill, lambda: self.leave(signal=_SIGKILL))
        if what != OVER:
            wait = 0.5 if what == KILL else 0.05
            if what in (NOTHING, TERM_GROUP, TERM_ALL) and self.ending.deadline is not None:
                wait = max(0.01, self.ending.deadline - self.node.world.now)
            self._later(wait, self._tick)

    def _look_at_fence(self) -> None:
        fence, world = self.spec["fence"], self.node.world
        if self.alive and world.now - max(self.node.words.get(self.run, 0.0), self.spoke) >= fence:
            self.ending.ask(state.WANT_KILL, 0.0, world.now)
            self.state["want"] = self.ending.want
            self._tick()
        self._later(fence / 4, self._look_at_fence)

    def refuse(self, message: str, want: str = state.WANT_RUN) -> None:
        self.state["want"] = want
        self._end(state.UNSTARTED, message)

    def kill_ours(self) -> None:
        """Kill guard and supervisor: the program stays alive until its state is queried."""
        self.locked = False

    def settle(self) -> None:
        """Update the state: without our processes the task is lost, and its other processes are killed."""
        if self.final or self.locked:
            return
        restarted = self.incarnation != self.node.boot
        self.alive = False
        self.state["restarted"] = restarted
        self._end(state.LOST, RESTARTED if restarted else "its supervisor was killed")


class Standby:
    """A task's Python that has imported its framework and waits for its agent or, if kept, its deadline."""

    def __init__(self, agent: Agent, spec: Mapping[str, Any]) -> None:
        self.agent: Agent | None = agent
        self.argv = spec["argv"]


class _Tail:
    """Data that a `follow` sends for one task, in the order of `orchestrator.node.task.follow`."""

    def __init__(self, stream: int, task: Task, log: int, report: int) -> None:
        self.stream, self.task, self.log, self.report = stream, task, log, report
        self.over = False
        self._seen: dict[str, Any] | None = None
        self._untold: dict[str, Any] | None = None

    def next(self) -> frames.Frame | None:
        if self.task.state != self._seen:
            self._seen = self._untold = json.loads(json.dumps(self.task.state))
        if self._untold is not None and not state.is_final(self._untold):
            return self._state()
        for kind in ("log", "report"):
            data, at = getattr(self.task, kind), getattr(self, kind)
            if len(data) > at:
                piece = bytes(data[at : at + CHUNK])
                setattr(self, kind, at + len(piece))
                more = {"times": self._times(at, at + len(piece))} if kind == "log" else {}
                return self._frame(kind, offset=at, **more), piece
        return self._state() if self._untold is not None else None

    def _times(self, start: int, end: int) -> list[tuple[int, int]]:
        before = [one for one in self.task.times if one[0] <= start][-1:]
        return [*before, *(one for one in self.task.times if start < one[0] < end)][:2000]

    def _state(self) -> frames.Frame:
        message, self._untold = self._untold, None
        assert message is not None
        self.over = state.is_final(message)
        return self._frame("state", state=message), b""

    def _frame(self, kind: str, **more: Any) -> dict[str, Any]:
        task = self.task
        return {"stream": self.stream, "attempt": task.attempt, "task": task.name, "kind": kind, **more}


class Agent:
    """Serves one connection."""

    def __init__(self, node: Node, channel: SimulatedChannel) -> None:
        self.node, self.world, self.channel = node, node.world, channel
        self.alive = True
        self.keeps: set[str] = set()
        self.tails: list[_Tail] = []
        self._decoder = frames.Decoder()
        self.began = self._heard = self.world.now
        self._pumps = False
        node.agents.append(self)
        self.world.after(5.0, self._beat)
        self.world.after(IDLE, self._idle)

    def leave(self) -> None:
        if self.alive:
            self.alive = False
            self.node.agents.remove(self)
            for run in self.keeps:
                if self.node.keeper.get(run, ("", None))[1] is self:
                    self.node.keeper[run] = (self.node.keeper[run][0], None)
            self.node.standbys = [one for one in self.node.standbys if one.agent is not self]
            self.node.leases = {port: who for port, who in self.node.leases.items() if who[1] is not self}
            self.channel.hang_up()

    def _idle(self) -> None:
        left = self._heard + IDLE - self.world.now
        if left <= 0:
            self.leave()
        elif self.alive:
            self.world.after(left, self._idle)

    def _beat(self) -> None:
        if self.alive:
            self.send({"beat": self.node.time_ns()})
            self.world.after(5.0, self._beat)

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        if self.alive:
            self.channel.to_controller(frames.encode(header, payload))

    def hear(self, data: bytes) -> None:
        if not self.alive:
            return
        self._heard = self.world.now
        for run in self.keeps:
            self.node.words[run] = self.world.now
        for fields, _payload in self._decoder.feed(data):
            self._serve(fields)

    def _serve(self, fields: dict[str, Any]) -> None:
        op = fields["op"]
        fate = self.world.on_request(self.node, op)
        slow = self.node.slow * self.world.dice.uniform(0.001, 0.03)
        if op == "states":
            until = self.world.now + fields.get("wait", 0.0)
            self.world.after(slow, lambda: self._await_end(fields, fate, until))
        elif op in ("sweep", "work_make", "gpus", "stacks", "vitals_ask"):  # in a child
            self.world.after(slow, lambda: self._answer(fields, fate))
        else:
            self._answer(fields, fate)

    def _await_end(self, fields: dict[str, Any], fate: str, until: float) -> None:
        alive = any(task["alive"] for run in self.op_states(fields)["runs"] for task in run["tasks"])
        if alive and self.alive and self.world.now < until:
            self.world.after(0.05, lambda: self._await_end(fields, fate, until))
        else:
            self._answer(fields, fate)

    def _answer(self, fields: dict[str, Any], fate: str) -> None:
        if not self.alive:
            return
        try:
            result = getattr(self, "op_" + fields["op"])(fields)
        except NodeError as error:
            self.reply(fields, {"ok": False, "error": error.as_dict()}, fate)
            return
        if result is not None:
            self.reply(fields, {"ok": True, "result": result}, fate)

    def reply(self, fields: dict[str, Any], answer: dict[str, Any], fate: str = "") -> None:
        self.world.answered(self.node, fields["op"])
        header = {"id": fields["id"], **answer}
        match fate:
            case "lost-reply":
                return
            case "cut-before-reply":
                self.channel.cut()
                return
            case "late-reply":
                self.world.after(self.world.dice.uniform(3.0, 90.0), lambda: self.send(header))
                return
        self.send(header)

    # --- operations ---

    def op_ping(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"time_ns": self.node.time_ns()}

    def op_keep(self, fields: dict[str, Any]) -> dict[str, Any]:
        run, who, node = fields["run"], fields["who"], self.node
        node.runs.setdefault(run, {})
        if fields.get("plan") is not None:
            node.plans[run] = fields["plan"]
        holder, agent = node.keeper.get(run, ("", None))
        granted = agent is None or agent is self
        if granted:
            node.keeper[run] = (who, self)
        if granted or holder == who:
            self.keeps.add(run)
            node.words[run] = self.world.now
        holder, agent = node.keeper[run]
        return {"granted": granted, "holder": {"who": holder, "alive": agent is not None}}

    def op_lease(self, fields: dict[str, Any]) -> dict[str, Any]:
        conflicts = []
        for port in map(int, fields["ports"]):
            run, _ = self.node.leases.setdefault(port, (fields["run"], self))
            if run != fields["run"]:
                conflicts.append({"port": port, "run": run, "task": "worker/0", "owner": "eve@there"})
        return {"conflicts": conflicts}

    def op_listen(self, fields: dict[str, Any]) -> dict[str, Any]:
        busy = [port for port in fields["ports"] if self.world.now < self.node.busy_until]
        if busy:
            self.world.hit("port-busy")
        free = [port for port in fields["ports"] if port not in busy]
        return {"listening": free, "busy": [{"port": port, "holder": "nginx"} for port in busy]}

    def op_unlisten(self, _: dict[str, Any]) -> dict[str, Any]:
        return {}

    def op_work_make(self, fields: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = {"work": f"/w/{fields['run']}/work", "missing": [], "made": True}
        if fields.get("needs") is not None:
            reply["had"] = {"program": True, "paths": []}
        return reply

    def op_gpus(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"gpus": []}

    def op_stacks(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"tasks": []}

    def op_vitals_ask(self, fields: dict[str, Any]) -> dict[str, Any]:
        living = [task for task in self.node.tasks if task.attempt == fields["attempt"] and not task.final]
        use = {"cpu": self.node.world.now, "memory": 1 << 20}
        return {"tasks": [{"attempt": task.attempt, "task": task.name, **use} for task in living]}

    def op_files_list(self, fields: dict[str, Any]) -> dict[str, Any]:
        if fields["path"].endswith("/trees/"):
            self.world.problem(f"{self.node.name} is asked for the code of every run")
        raise NodeError("missing", f"has no {fields['path']}")

    def op_standby(self, fields: dict[str, Any]) -> dict[str, Any]:
        node, there = self.node, [one.argv for one in self.node.standbys]
        if node.no_memory:
            self.world.hit("standby-refused")
            return {"made": 0, "why": ["memory is short"]}
        new = []
        for spec in fields["specs"]:
            if spec["argv"] in there:
                there.remove(spec["argv"])
            else:
                new.append(Standby(self, spec))
        node.standbys += new
        return {"made": len(new), "why": []}

    def op_standby_keep(self, fields: dict[str, Any]) -> dict[str, Any]:
        for one in [one for one in self.node.standbys if one.agent is self]:
            one.agent = None
            self.world.after(fields["seconds"], partial(self.node.lose_standby, one))
        kept = [one for one in self.node.standbys if one.agent is None]
        return {"waiting": [{"command": " ".join(one.argv), "memory": 1 << 29} for one in kept]}

    def op_start(self, fields: dict[str, Any]) -> dict[str, Any] | None:
        run, attempt, name = fields["run"], fields["attempt"], fields["task"]
        tasks = self.node.runs.setdefault(run, {})
        if fields.get("plan") is not None:
            self.node.plans[run] = fields["plan"]
        known = tasks.get((attempt, name))
        if known is not None:
            known.settle()
            return {"started": False, "already": True, "pid": known.state["pid"], "state": known.state}
        refused = self.node.refuses.pop(0) if self.node.refuses else ""
        if refused == "claim":
            self.world.hit("start-no-room")
            raise NodeError("state", f"the folder of {name} cannot be created", "No space left on device")
        task = tasks[attempt, name] = Task(self.node, run, attempt, name, fields["spec"])
        if run in self.node.stopped:
            task.refuse("a user has stopped the run", state.WANT_STOP)
            raise NodeError("stopped", f"no longer starts tasks of run {run}", "a user has stopped the run")
        if refused == "program":
            self.world.hit("start-refused")
            task.refuse("python could not be started")
            raise NodeError("start", "python could not be started", "no such file")
        delay = self.node.slow * self.world.dice.uniform(0.01, 0.2)
        standby = next((one for one in self.node.standbys if one.argv == fields["spec"]["argv"]), None)
        cold = "" if standby or not fields["spec"]["imports"] else "none was ready"
        if standby is not None:
            self.node.lose_standby(standby)  # from now on it is this task
            if self.node.fails_taken:  # its supervisor starts the task like any other
                self.node.fails_taken, cold = False, "its Python ended with 1"
                self.world.hit("standby-dies-taken")
                delay += 1.0
        warm = standby is not None and not cold

        def begun() -> None:
            task.begin()
            if task.alive:
                answer = {"started": True, "already": False, "pid": task.state["pid"], "state": task.state}
                answer |= {"warm": warm, "cold": cold}
                self.reply(
                    fields, {"ok": True, "result": answer}, self.world.on_request(self.node, "started")
                )

        self.world.after(delay, begun)
        return None

    def op_stop(self, fields: dict[str, Any]) -> dict[str, Any]:
        if fields["final"] and fields["run"] in self.node.runs:
            self.node.stopped.add(fields["run"])
        want = state.WANT_KILL if fields["kill"] else state.WANT_STOP
        tasks = self.node.runs.get(fields["run"], {}).values()
        attempt, grace = "" if fields["final"] else fields["attempt"], float(fields["grace"])
        asked = {task.name for task in tasks if attempt in ("", task.attempt) and task.ask(want, grace)}
        return {"asked": sorted(asked)}

    def op_states(self, fields: dict[str, Any]) -> dict[str, Any]:
        run = fields["run"]
        if run not in self.node.runs:
            return {"runs": [], "more": 0}
        tasks = [self._status(task) for task in self.node.runs[run].values()]
        who, agent = self.node.keeper.get(run, ("", None))
        known = {
            "run": run,
            "plan": self.node.plans.get(run),
            "keeper": {"who": who, "alive": agent is not None} if who else None,
            "stopped": run in self.node.stopped,
            "tasks": tasks,
        }
        return {"runs": [known], "more": 0}

    def _status(self, task: Task) -> dict[str, Any]:
        task.settle()
        known = {"attempt": task.attempt, "task": task.name, "state": task.state, "log_size": len(task.log)}
        return {**known, "alive": not task.final and task.locked}

    def op_sweep(self, fields: dict[str, Any]) -> dict[str, Any]:
        alive = []
        for task in self.node.runs.get(fields["run"], {}).values():
            task.settle()
            if not task.final:
                alive.append(task.name)
        return {"killed": [], "alive": sorted(set(alive))}

    def op_follow(self, fields: dict[str, Any]) -> dict[str, Any]:
        missing = []
        for wanted in fields["tasks"]:
            task = self.node.runs.get(fields["run"], {}).get((fields["attempt"], wanted["task"]))
            if task is None:
                missing.append(wanted["task"])
            else:
                self.tails.append(_Tail(fields["id"], task, wanted["log"], wanted["report"]))
        self.world.after(1.0, self._look_at_locks)
        self.news()
        return {"missing": missing}

    def op_unfollow(self, fields: dict[str, Any]) -> dict[str, Any]:
        self.tails = [tail for tail in self.tails if tail.stream != fields["target"]]
        return {}

    def _look_at_locks(self) -> None:
        if self.alive and self.tails:
            for tail in self.tails:
                tail.task.settle()
            self.world.after(1.0, self._look_at_locks)

    def news(self) -> None:
        if not self._pumps and self.tails:
            self._pumps = True
            self.world.after(self.node.slow * self.world.dice.uniform(0.01, 0.2), self._pump)

    def _pump(self) -> None:
        self._pumps = False
        due = deque(self.tails)
        while due and self.alive:
            tail = due.popleft()
            if (frame := tail.next()) is not None:
                self.send(*frame)
                due.append(tail)
            if tail.over and tail in self.tails:
                self.tails.remove(tail)


class Node:
    """One machine: its contents and its faults."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.boot = 1
        self.offset = 0.0  # of its clock
        self.latency = world.dice.uniform(0.001, 0.02)
        self.slow = 1.0
        self.up = True
        self.trouble = ""  # fault of new connections
        self.full = False
        self.linger = 0.02  # seconds until an agent notices the loss of its connection
        self.busy_until = 0.0
        self.refuses: list[str] = []
        self.agents: list[Agent] = []
        self.channels: list[SimulatedChannel] = []
        self.runs: dict[str, dict[tuple[str, str], Task]] = {}
        self.plans: dict[str, str] = {}
        self.keeper: dict[str, tuple[str, Agent | None]] = {}
        self.words: dict[str, float] = {}
        self.stopped: set[str] = set()
        self.leases: dict[int, tuple[str, Agent | None]] = {}
        self.standbys: list[Standby] = []
        self.no_memory = self.fails_taken = False  # for standbys; the next one that becomes a task

    @property
    def tasks(self) -> list[Task]:
        return [task for tasks in self.runs.values() for task in tasks.values()]

    def answers_since(self, when: float) -> bool:
        """Return whether the keeper has been connected since then, and the host has no fault."""
        connected = any(agent.began <= when and agent.channel.open_here for agent in self.agents)
        return (
            connected and self.up and self.slow == 1.0 and not any(one.silent for one in self.channels[-1:])
        )

    def time_ns(self) -> int:
        return int((EPOCH + self.world.now + self.offset) * 1e9)

    def hello(self) -> dict[str, Any]:
        usual = {"python": "3.11.2", "user": "train", "state": "/s", "state_error": None}
        mine = {
            "boot_id": f"{self.name}-{self.boot}",
            "netns": f"net-{self.name}",
            "state_place": f"1:{self.name}",
        }
        return {**usual, **mine, "time_ns": self.time_ns()}

    def lose_standby(self, standby: Standby) -> None:
        self.standbys = [one for one in self.standbys if one is not standby]

    def cut(self) -> None:
        for channel in list(self.channels):
            channel.cut()

    def reboot(self, seconds: float) -> None:
        """Kill everything; the disk survives."""
        self.boot += 1
        self.up = False
        for agent in list(self.agents):
            agent.alive = False
        self.agents.clear()
        for channel in list(self.channels):
            channel.vanish(self.world.dice.random() < 0.5)
        for task in self.tasks:
            task.alive = task.locked = False
        self.keeper = {run: (who, None) for run, (who, _) in self.keeper.items()}
        self.leases.clear()
        self.standbys.clear()
        self.world.after(seconds, self._back)

    def _back(self) -> None:
        self.up = True
