# Token files, manifests and the store → the datasets that trainers read, a folder of results/dataset for each format.
# Only provenance.json is Snakemake's: it deletes outputs before a job, and the rest is kept where it is right.


rule package:
    input:
        tokens=expand("results/tokens/{chunk}.parquet", chunk=CHUNKS),
        summary="results/tokens/summary.json",
        manifests=expand("results/chunks/{chunk}/manifest.parquet", chunk=CHUNKS),
        checked=expand("results/qa/{chunk}.json", chunk=CHUNKS),
        ready=ancient("results/server/ready.json"),
        ticket=lambda wildcards: hs.ticket("dataset"),
    output:
        provenance=hs.datasets(SETTINGS),
    log:
        "logs/package.log",
    conda:
        "../envs/workflow.yaml"
    params:
        triggers=hs.package_triggers(SETTINGS),
    message:
        "Package the dataset"
    shell:
        "hidden-states package --results results --log {log}"
