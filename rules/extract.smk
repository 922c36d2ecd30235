# Token file → hidden states of its samples, in the store results/states, and the chunk's manifest in
# results/chunks/{chunk}/manifest.parquet. States that the store holds are not computed again; those that `verify` found
# damaged are.


rule extract:
    input:
        tokens="results/tokens/{chunk}.parquet",
        ready="results/server/ready.json",
        ticket=lambda wildcards: hs.ticket(wildcards.chunk),
    output:
        manifest="results/chunks/{chunk}/manifest.parquet",
    log:
        "logs/extract/{chunk}.log",
    retries: 2  # a crashed job goes on from what is in the store
    conda:
        "../envs/workflow.yaml"
    threads: 1  # it mostly waits for the server
    resources:
        server=1,
    params:
        triggers=STATE_TRIGGERS,
    message:
        "Extract chunk {wildcards.chunk}"
    shell:
        "hidden-states extract --chunk {wildcards.chunk} --results results --log {log}"
