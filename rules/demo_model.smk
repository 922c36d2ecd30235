# The conversations that come with the workflow → a tiny random model of the DeepSeek-V3 shape with its own tokenizer, in results/demo_model.


rule demo_model:
    input:
        conversations=workflow.source_path("../resources/conversations/demo.jsonl"),
    output:
        config="results/demo_model/config.json",
        weights="results/demo_model/model.safetensors",
        tokenizer="results/demo_model/tokenizer.json",
        tokenizer_config="results/demo_model/tokenizer_config.json",
    log:
        "logs/demo_model.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    message:
        "Make the demo model"
    shell:
        "hidden-states demo-model --results results --log {log}"
