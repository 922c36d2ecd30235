# Conversations → token files, one a chunk, in results/tokens/{chunk}.parquet; every id is inside the vocabulary. Rows that
# cannot be used are in rejected.parquet with their reasons, the totals in summary.json.


rule tokenize:
    input:
        conversations=hs.conversation_files(SETTINGS),
        model=rules.demo_model.output if SETTINGS["model"]["path"] == "demo" else [],
    output:
        tokens=expand("results/tokens/{chunk}.parquet", chunk=CHUNKS),
        rejected="results/tokens/rejected.parquet",
        summary="results/tokens/summary.json",
    log:
        "logs/tokenize.log",
    conda:
        "../envs/workflow.yaml"
    threads: workflow.cores  # the tokenizer uses every core
    params:
        triggers=hs.token_triggers(SETTINGS),
    message:
        "Tokenize the conversations"
    shell:
        "hidden-states tokenize --results results --log {log}"
