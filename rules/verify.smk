# Quality control of everything on disk, for `snakemake verify`: no input and no output, so that it always runs, starts no
# server and fails when something is wrong. What it finds it writes to results/qa/damage, and `all` repairs it.


rule verify:
    log:
        "logs/verify.log",
    conda:
        "../envs/workflow.yaml"
    threads: workflow.cores  # it reads at the speed of the disk
    params:
        repeat=REPEAT,
    message:
        "Verify everything on disk"
    shell:
        "hidden-states verify --results results --log {log} --repeat-options={params.repeat:q}"
