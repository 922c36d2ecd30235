# Manifest against token file and store → results/qa/{chunk}.json, the gate for packaging.


rule verify_chunk:
    input:
        tokens="results/tokens/{chunk}.parquet",
        manifest="results/chunks/{chunk}/manifest.parquet",
    output:
        qa="results/qa/{chunk}.json",
    log:
        "logs/verify_chunk/{chunk}.log",
    conda:
        "../envs/workflow.yaml"
    message:
        "Verify chunk {wildcards.chunk}"
    shell:
        "hidden-states verify-chunk --chunk {wildcards.chunk} --results results --log {log}"
