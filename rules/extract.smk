# Token file → hidden states of its samples, in the store results/states, and the chunk's manifest in
# results/chunks/{chunk}/manifest.parquet. States that the store holds are not computed again; those that `verify` found
# damaged are.


rule extract:
    input:
        # Ancient: a token file that is made again because it was damaged comes out the same.
        tokens=ancient("results/tokens/{chunk}.parquet"),
        # Ancient: every start of the server must equal it, so a new one is no reason to extract again.
        ready=ancient("results/server/ready.json"),
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
        tokens=TOKEN_TRIGGERS,
        states=STATE_TRIGGERS,
    message:
        "Extract chunk {wildcards.chunk}"
    shell:
        "hidden-states extract --chunk {wildcards.chunk} --results results --log {log}"
