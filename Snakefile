# Conversations → tokens → hidden states (through a patched SGLang server) → a verified dataset for speculators.
# Everything lands below results/; what a file means is in README.md.
from snakemake.utils import min_version

min_version("9.27")


include: "rules/common.smk"


rule all:
    input:
        manifests=expand("results/chunks/{chunk}/manifest.parquet", chunk=CHUNKS),
        dataset=hs.datasets(SETTINGS),
        report="results/report/run.html",


include: "rules/demo_model.smk"
include: "rules/tokenize.smk"
include: "rules/start_server.smk"
include: "rules/extract.smk"
include: "rules/verify_chunk.smk"
include: "rules/package.smk"
include: "rules/report.smk"
include: "rules/verify.smk"


onstart:
    start_run()


onsuccess:
    RUN.end(success=True)


onerror:
    RUN.end(success=False)
