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


def workflow_targets():
    """Names of the rules that this call asks for."""
    return set(map(str, workflow.dag_settings.targets or ["all"]))


SETTINGS = load_settings()
CHUNKS = hs.chunk_names(SETTINGS)
RUN = hs.Run(SETTINGS)

# Jobs that wait for a server hold a core each: one runs, one waits ready, the other cores verify.
workflow.global_resources["server"] = SETTINGS["server"]["slots"] + 1


wildcard_constraints:
    chunk=r"\d{4}",
