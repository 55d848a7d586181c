"""The steps from connected hosts to the start of their tasks, for a first and for a later attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.phases import data, preflight, setup, spares, stage, validate
from orchestrator.phases.context import Run
from orchestrator.phases.restart.backup import carry_backup, shared_now


def prepare(run: Run, joined: Sequence[str] | None = None) -> None:
    """Bring the hosts to where their tasks can be started; raise PhaseFailed.

    `joined` are the hosts that the attempt before did not have. None: this is the first attempt, all are new.
    """
    first, admission = joined is None, run.plan.admission
    are_new = first or bool(joined)
    setup.setup(run, None if joined is None else [run.plan.host(name) for name in joined])
    # Nodes say what they are while they are examined, and get their code; with [data], once that is there.
    validates = are_new and admission.validate
    validation = validate.begin(run, joined) if validates and run.plan.data is None else None
    shared: Mapping[str, str] = {}
    if are_new and admission.preflight:
        shared = preflight.preflight(run)
        if first:
            spares.examine_spares(run)
        else:
            run.shared = shared_now(run, shared)
    have_data = run.data_env.keys() == {host.name for host in run.hosts}
    data.place(run, joined if have_data else None)
    if validates and validation is None:
        validation = validate.begin(run, joined)
    if joined is None:
        stage.stage(run, shared)
    else:
        stage.stage_again(run, joined)
    run.started = True
    if validation is not None:
        validation()
    if not first and run.plan.restarts.backup is not None:
        carry_backup(run, run.plan.preparing.leader, run.plan.restarts.backup)
