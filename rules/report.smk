# The figures of the run → results/report, shown by `snakemake --report report.html`.


rule report:
    input:
        summary="results/tokens/summary.json",
        provenance=hs.datasets(SETTINGS),
    output:
        page=report(
            "results/report/run.html",
            caption="../resources/captions/run.rst",
            category="Run",
        ),
        table=report(
            "results/report/run.csv",
            caption="../resources/captions/chunks.rst",
            category="Run",
        ),
    log:
        "logs/report.log",
    conda:
        "../envs/workflow.yaml"
    message:
        "Write the report"
    shell:
        "hidden-states report --results results --log {log}"
