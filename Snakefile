# Conversations → tokens → hidden states (through a patched SGLang server) → a verified dataset for speculators.
# Everything lands below results/; what a file means is in README.md.
from snakemake.utils import min_version

min_version("9.27")


include: "rules/common.smk"


rule all:
    input:
        # Each is named here, as what is missing in the middle would otherwise not be made again.
        tokens=expand("results/tokens/{chunk}.parquet", chunk=CHUNKS),
        rejected="results/tokens/rejected.parquet",
        summary="results/tokens/summary.json",
        ready="results/server/ready.json",
        manifests=expand("results/chunks/{chunk}/manifest.parquet", chunk=CHUNKS),
        checked=expand("results/qa/{chunk}.json", chunk=CHUNKS),
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
