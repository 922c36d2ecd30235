# A patched SGLang server on a clean dump directory, proven to capture rightly; what it is stands in
# results/server/ready.json. It stays warm for the chunks that follow.


rule start_server:
    input:
        summary="results/tokens/summary.json",
    output:
        ready="results/server/ready.json",
    log:
        "logs/start_server.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        server=1,
    params:
        triggers=STATE_TRIGGERS,
    message:
        "Start the server and check what it captures"
    shell:
        "hidden-states start-server --results results --log {log}"
