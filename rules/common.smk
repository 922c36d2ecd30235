# Settings, checked before any job runs, and what rules share.
from pathlib import Path

from snakemake.exceptions import WorkflowError

from hidden_states import workflow as hs
from hidden_states.errors import UserError


def load_settings():
    try:
        return hs.load_settings(
            workflow.overwrite_configfiles,
            workflow.config_settings.config,
            Path(workflow.source_path("../config/schema.yaml")),
            Path(workflow.source_path("../config/config.yaml")),
            Path(workflow.basedir),
        )
    except UserError as error:
        raise WorkflowError(str(error)) from None


def start_run():
    try:
        RUN.start(set(map(str, workflow.dag_settings.targets or ["all"])))
    except UserError as error:
        raise WorkflowError(str(error)) from None


SETTINGS = load_settings()
CHUNKS = hs.chunk_names(SETTINGS)
# A changed value runs a step again: one string, so that the order of keys does not matter.
STATE_TRIGGERS = hs.state_triggers(SETTINGS)
REPEAT = hs.repeat_options(workflow.overwrite_configfiles, workflow.overwrite_workdir)
RUN = hs.Run(SETTINGS, REPEAT)

# Jobs that wait for a server hold a core each: one runs, one waits ready, the other cores verify.
workflow.global_resources["server"] = SETTINGS["server"]["slots"] + 1


wildcard_constraints:
    chunk=r"\d{4}",
